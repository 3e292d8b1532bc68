"""A PINN in polar coordinates: r = sqrt(x^2 + y^2) enters the network, and one collocation point of the finer grid is the origin.
After https://github.com/prateekbhustali/Physics-Informed-Neural-Networks/issues/1 (Nan after one iteration in a PINN residual with autograd).
True cause: the slope of the square root at zero is infinite, reached by the derivative in the residual."""
import torch
from torch import nn


class Radial(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))

    def forward(self, xy):
        r = torch.sqrt((xy ** 2).sum(1, keepdim=True))
        return self.net(r)


def laplacian(u, xy):
    (du,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
    return sum(torch.autograd.grad(du[:, k].sum(), xy, create_graph=True)[0][:, k] for k in range(2))


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"u": Radial()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    def grid(n):
        axis = torch.linspace(-1, 1, n)
        return torch.cartesian_prod(axis, axis)

    points = [grid(4), grid(4), grid(5)]                      # an odd number of points has the origin

    def residual(m, p):
        xy = p.clone().requires_grad_(True)
        return (laplacian(m["u"](xy), xy) + 1).square().mean()

    return dict(model=model, optimizer=opt, batches=points, loss_fn=residual, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="u", also_module=("loss",), phase="backward", also_phase=("forward",), op="aten.div", also_op=("aten.mul",), first_bad_step=2, line="r = torch.sqrt(", sample=12))
