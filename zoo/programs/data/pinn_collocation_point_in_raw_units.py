"""Physics-informed net with vmap'd per-point derivatives: coordinates are in [0, 1], but ONE collocation point of batch 3 came in raw units (4e12);
the residual's x**4 source term overflows. loss_fn returns a dict of two named terms; their sum is the loss."""
import torch, torch.nn as nn
from torch.func import functional_call, grad, vmap
class U(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = U(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [{"interior": torch.rand(20, generator=g), "boundary": torch.tensor([0.0, 1.0])} for _ in range(6)]; bs[3]["interior"][11] = 4e12
    def residual(m, x):
        p = dict(m.named_parameters()); u = lambda t: functional_call(m, p, (t.view(1),)).squeeze()
        return vmap(grad(u))(x) - x.pow(4)
    def loss_fn(m, b):
        return dict(pde=residual(m, b["interior"]).abs().mean(), bc=10 * m(b["boundary"][:, None]).square().mean())
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", module="loss", phase="forward", op="aten.pow", first_bad_step=3, loss_finite_at_first_bad_step=False, grads_finite=True,
                           why="One point of 4e12 among points in [0,1]: its fourth power overflows."))
