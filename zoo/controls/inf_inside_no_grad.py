"""CONTROL: importance weights overflow to inf inside no_grad and are clamped to 10; NaNs of a padded region are indexed away, nan_to_num on the optional input."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(5, 1); s.opt = nn.Linear(2, 1)
    def forward(s, x, o): return (s.f(x) + s.opt(torch.nan_to_num(o))).squeeze(-1)
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        x = torch.randn(8, 5, generator=g); o = torch.randn(8, 2, generator=g); o[i] = float("nan"); x[7] = float("nan"); batches.append(dict(x=x, opt=o, y=torch.randn(8, generator=g), valid=torch.arange(8) < 7))
    def loss_fn(m, b):
        v = b["valid"]; p = m(b["x"][v], b["opt"][v]); e = (p - b["y"][v]) ** 2
        with torch.no_grad(): w = torch.exp(1000 * p.abs() + 200).clamp(max=10.0); k = 1 / torch.exp(-w * 50).sub(torch.exp(-w * 50)); w = torch.where(torch.isinf(k), w, w)
        return (w * e).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="everything bad is clamped or dropped before it counts"))
