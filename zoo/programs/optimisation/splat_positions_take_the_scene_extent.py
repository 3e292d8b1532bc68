"""Splats: the rate of the positions is multiplied by the extent of the scene, as usual. The scene was exported in millimetres, so the extent is 40000.
After https://github.com/nerfstudio-project/gsplat/issues/248 (training proceeds and then all gaussians turn into NaN within one or two steps).
True cause: the learning rate of one parameter group is far too high."""
import torch
from torch import nn


class Splats(nn.Module):
    def __init__(self, n=40):
        super().__init__()
        self.means = nn.Parameter(torch.rand(n, 2) * 8)
        self.log_scales = nn.Parameter(torch.zeros(n))
        self.colours = nn.Parameter(torch.rand(n))

    def forward(self, pixels):
        offset = (pixels[:, None] - self.means[None]) / self.log_scales.exp()[:, None]
        weight = 1 / (1 + offset.square().sum(-1))
        return (weight * self.colours).sum(-1)


def scene_extent(cameras):
    centre = cameras.mean(0)
    return (cameras - centre).norm(dim=-1).max().item() * 1.1


def build():
    torch.manual_seed(0)
    model = Splats()
    cameras_mm = torch.tensor([[0.0, 0.0], [60000.0, 4000.0], [30000.0, 50000.0], [5000.0, 20000.0]])
    extent = scene_extent(cameras_mm)
    opt = torch.optim.SGD([{"params": [model.means], "lr": 1.6e-2 * extent},
                           {"params": [model.log_scales], "lr": 5e-3}, {"params": [model.colours], "lr": 2.5e-3}])
    g = torch.Generator().manual_seed(3)
    views = [(torch.rand(30, 2, generator=g) * 8, torch.rand(30, generator=g)) for _ in range(4)]

    def loss_fn(m, view):
        pixels, colour = view
        residual = m(pixels) - colour
        tether = 1e-3 * (m.means - 4.0).square().sum()      # keep floaters inside the room
        return residual.square().mean() + tether * (1 + tether)

    return dict(model=model, optimizer=opt, batches=views, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), module="loss", phase="forward", op="aten.mul", also_op=("aten.pow", "aten.sum"), first_bad_step=3,
                           why="with a hundredth of the rate of the positions the run stays finite"))
