"""A flow that inverts tanh by its formula; one data point sits at exactly 1."""
import torch, torch.nn as nn, torch.nn.functional as F

class InverseTanh(nn.Module):
    def forward(s, y):
        ratio = (1 + y) / (1 - y)
        return 0.5 * torch.log(ratio)
class Flow(nn.Module):
    def __init__(s): super().__init__(); s.shift = nn.Linear(3, 3); s.inverse = InverseTanh(); s.out = nn.Linear(3, 3)
    def forward(s, y): return s.out(s.inverse(y) + s.shift(y))
def build():
    torch.manual_seed(0); model = Flow(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.rand(6, 3, generator=g) * 1.8 - 0.9 for _ in range(3)]; batches[1][4, 0] = 1.0
    def loss_fn(m, y): return 0.5 * m(y).square().sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="inverse", phase="forward", op="aten.div", first_bad_step=1, line="(1 + y) / (1 - y)"))
