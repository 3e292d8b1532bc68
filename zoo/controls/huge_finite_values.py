"""CONTROL: losses of 1e30 with gradients of 1e15 for some steps (a physical unit), normalised by the optimizer; loss then negative. Never non-finite."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 1)
    def forward(s, x): return s.f(x).squeeze(-1)
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, generator=g) * (1e15 if i in (2, 3) else 1.0)) for i in range(10)]
    def loss_fn(m, b): return F.mse_loss(m(b[0]), b[1]) - 50.0
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="large but finite"))
