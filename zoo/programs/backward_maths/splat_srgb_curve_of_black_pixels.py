"""A toy of 2D Gaussian splatting: colours are blended in linear light and converted to sRGB before the loss. The conversion is the
usual torch.where with a linear piece below 0.0031308 and a power 1/2.4 above. From step 3 on the view is larger, and the pixels at its
edge are covered by no splat (weights below 1/255 are cut): they are exactly black. where takes the linear piece, but the backward of
the power at zero is Inf and meets a zero gradient. The true cause is the unselected branch of where."""
import torch
from torch import nn


def linear_to_srgb(c):
    return torch.where(c <= 0.0031308, 12.92 * c, 1.055 * c ** (1 / 2.4) - 0.055)


class Splats(nn.Module):
    def __init__(self, n=12):
        super().__init__()
        self.mean = nn.Parameter(torch.rand(n, 2) * 0.6 + 0.2)
        self.log_scale = nn.Parameter(torch.full((n,), -2.5))
        self.colour = nn.Parameter(torch.randn(n, 3))
        self.opacity = nn.Parameter(torch.zeros(n))

    def forward(self, xy):
        d2 = (xy[:, None] - self.mean).pow(2).sum(-1)
        alpha = torch.sigmoid(self.opacity) * torch.exp(-0.5 * d2 / torch.exp(2 * self.log_scale))
        alpha = alpha * (alpha > 1 / 255)
        transmittance = torch.cumprod(1 - alpha + 1e-7, 1)
        weight = alpha * torch.cat([torch.ones_like(alpha[:, :1]), transmittance[:, :-1]], 1)
        return weight @ torch.sigmoid(self.colour)


class Renderer(nn.Module):
    def __init__(self):
        super().__init__()
        self.splats = Splats()


def loss_fn(model, batch):
    xy, target = batch
    return (linear_to_srgb(model.splats(xy)) - target).abs().mean()


def grid(lo, hi, n=12):
    t = torch.linspace(lo, hi, n)
    return torch.cartesian_prod(t, t)


def build():
    torch.manual_seed(11)
    model = Renderer()
    with torch.no_grad():
        model.splats.mean.copy_(torch.cartesian_prod(torch.tensor([0.35, 0.5, 0.65]), torch.tensor([0.3, 0.45, 0.6, 0.7])))
    near, far = grid(0.45, 0.55), grid(-1.0, 2.0)
    batches = [(near, torch.rand(144, 3))] * 3 + [(far, torch.rand(144, 3))] * 2
    truth = dict(
        cause="where_unselected_branch", also=["singular_gradient_at_zero"], first_bad_step=3, phase="backward", module="loss", op="aten.pow",
        also_op=["aten.mul", "aten.where"], line="return torch.where(c <= 0.0031308,", loss_finite_at_first_bad_step=True,
        why="black pixels take the linear piece, yet the derivative of the power at zero, Inf, is multiplied by their zero gradient",
        repair=("1.055 * c ** (1 / 2.4)", "1.055 * c.clamp(min=0.0031308) ** (1 / 2.4)"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=5e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
