"""CONTROL: properly guarded code: double where around sqrt and division, empty masks with sum/clamp_min, std with correction 0 of one row."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 4)
    def forward(s, x, m):
        h = s.f(x); ok = h > 0; r = torch.where(ok, torch.where(ok, h, 1.0).sqrt(), 0.0); d = x.abs().sum(-1, keepdim=True); k = d > 0
        q = torch.where(k, h / torch.where(k, d, 1.0), 0.0)
        return (r.sum(-1) * m).sum() / m.sum().clamp_min(1) + q.square().mean() + x.std(0, correction=0).sum() + h.mean(0).square().sum()
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        n = 1 if i == 4 else 6; x = torch.randn(n, 4, generator=g); x[0] = 0; batches.append((x, torch.zeros(n) if i == 2 else torch.ones(n)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="guards are right"))
