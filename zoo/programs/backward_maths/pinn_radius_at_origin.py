"""Physics-informed net in polar coordinates: r = sqrt(x^2+y^2); the residual needs du/dx through autograd.grad(create_graph=True).
From step 3 the collocation points contain the origin. lr is raised tenfold in the same step (innocent)."""
import torch, torch.nn as nn

class Polar(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, xy): return torch.sqrt((xy ** 2).sum(-1, keepdim=True) + (1e-8 if s.fix == "true" else 0.0))
class PINN(nn.Module):
    def __init__(s, fix): super().__init__(); s.polar = Polar(fix); s.f = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    def forward(s, xy): return s.f(s.polar(xy))

def build(fix=None):
    torch.manual_seed(0); model = PINN(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(16, 2, generator=g) + 0.05, k) for k in range(6)]
    batches[3][0][7] = 0.0
    def loss_fn(m, b):
        if b[1] == 3 and fix != "innocent":
            for q in opt.param_groups: q["lr"] = 1e-3
        xy = b[0].clone().requires_grad_(True); u = m(xy)
        du, = torch.autograd.grad(u.sum(), xy, create_graph=True)
        return ((du.sum(-1) - 1) ** 2).mean() + u.pow(2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="polar", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False, also_phase=["backward"], also=["division_by_zero"],
                           why="slope of sqrt at r=0 taken by autograd.grad inside the loss (a backward node run during forward)"))
