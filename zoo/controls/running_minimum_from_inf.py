"""CONTROL: a running minimum that begins at inf and a clamp that removes the inf of an overflowed exp without gradient."""
import torch, torch.nn as nn, torch.nn.functional as F

class M(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 1); s.register_buffer("best", torch.tensor(float("inf")))
    def forward(s, x):
        y = s.lin(x)
        with torch.no_grad(): s.best.copy_(torch.minimum(s.best, y.min())); w = torch.exp(x.abs().amax(1, keepdim=True) * 100).clamp(max=3.0)
        return y * w
def build():
    torch.manual_seed(0); model = M(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 4, generator=g) for _ in range(4)]
    def loss_fn(m, x): return m(x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
