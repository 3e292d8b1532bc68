"""A band-limited field is a sum of sinc kernels on a regular grid; the wave equation needs its second derivative. One collocation point coincides with a grid node, where
sinc is smooth, but its second derivative by autograd is NaN.
After https://github.com/pytorch/pytorch/issues/196703 (torch.sinc produces NaN in the second derivative at its removable singularity).
True cause: the derivative of the library's sinc divides by zero at zero when it is differentiated again."""
import torch
from torch import nn


class SincField(nn.Module):
    def __init__(self, nodes=9, spacing=0.25):
        super().__init__()
        self.coefficients = nn.Parameter(0.1 * torch.randn(nodes))
        self.register_buffer("grid", torch.arange(nodes) * spacing - 1.0)
        self.spacing = spacing

    def forward(self, x):
        return torch.sinc((x - self.grid) / self.spacing) @ self.coefficients


def residual(field, x, source):
    x = x.clone().requires_grad_()
    u = field(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    return d2u.squeeze(-1) + 4.0 * u - source


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"field": SincField()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(3)
    batches = []
    for i in range(5):
        x = torch.rand(12, 1, generator=g) * 2 - 1
        if i == 2:
            x[4] = -0.5                                  # the sensor sits on a node
        batches.append((x, torch.sin(3 * x.squeeze(-1))))

    def loss_fn(m, b):
        return residual(m["field"], b[0], b[1]).square().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("where_unselected_branch", "backend_or_kernel_bug", "division_by_zero"), module="field", also_module=("loss",),
                           phase="forward", also_phase=("backward",), op="aten.div", first_bad_step=2, sample=4, line="(d2u,) = torch.autograd.grad(du.sum(), x, create_graph=True)",
                           why="sinc is smooth at zero; its backward selects a constant there, and the branch that is not selected divides by zero"))
