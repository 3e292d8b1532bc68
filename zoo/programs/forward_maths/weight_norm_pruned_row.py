"""Magnitude pruning zeroes one row of v under weight_norm (g v/|v| = 0/0). The zeroed row of the F.normalize'd layer is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
class Cos(nn.Module):
    def __init__(s): super().__init__(); s.weight = nn.Parameter(torch.randn(4, 8))
    def forward(s, x): return F.linear(x, F.normalize(s.weight, dim=1))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.fc = weight_norm(nn.Linear(6, 8)); s.cos = Cos()
    def forward(s, x): return s.cos(torch.relu(s.fc(x)))
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(i, torch.randn(8, 6, generator=g), torch.randint(0, 4, (8,), generator=g)) for i in range(5)]
    def loss_fn(m, b):
        if b[0] == 2:
            with torch.no_grad():
                if fix != "innocent": m.cos.weight[1] = 0
                v = m.fc.parametrizations.weight.original1
                if fix != "true": v[3] = 0
                else: v[3] *= 1e-3
        return F.cross_entropy(m(b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="fc.parametrizations.weight.0", phase="forward", op="aten._weight_norm_interface", first_bad_step=2,
                           loss_finite_at_first_bad_step=False, also=["state_overwritten"], why="norm of the pruned row is 0"))
