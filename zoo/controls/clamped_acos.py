"""CONTROL: acos(clamp(x, -1, 1)) with values well outside [-1, 1]: the slope of acos is Inf there, but clamp's backward replaces it by 0; every gradient is finite and training goes on."""
import torch, torch.nn as nn
class Angle(nn.Module):
    def forward(s, c): return torch.acos(c.clamp(-1.0, 1.0))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(6, 4); s.angle = Angle(); s.out = nn.Linear(4, 1)
    def forward(s, x): return s.out(s.angle(s.lin(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [(torch.randn(16, 6, generator=g) * 3, torch.randn(16, 1, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="Inf slopes are erased by clamp's backward."))
