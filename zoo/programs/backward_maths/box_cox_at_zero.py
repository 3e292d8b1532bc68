"""A Box-Cox layer: where() picks the log at lambda 0, but the other branch divides by lambda."""
import torch, torch.nn as nn, torch.nn.functional as F

class BoxCox(nn.Module):
    def __init__(s): super().__init__(); s.lam = nn.Parameter(torch.tensor([0.5, 0.0, -0.3]))
    def forward(s, x):
        power = (x ** s.lam - 1) / s.lam
        return torch.where(s.lam.abs() < 1e-6, x.log(), power)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.boxcox = BoxCox(); s.head = nn.Linear(3, 1)
    def forward(s, x): return s.head(s.boxcox(x)).squeeze(-1)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(6, 3, generator=g) + 0.2, torch.randn(6, generator=g)) for _ in range(2)]
    def loss_fn(m, b): return F.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="boxcox", phase="backward", op="aten.div", first_bad_step=0, line="power = (x ** s.lam", loss_finite_at_first_bad_step=True))
