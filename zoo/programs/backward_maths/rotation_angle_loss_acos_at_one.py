"""Head pose estimation with the geodesic loss between rotation matrices (6D representation).

What goes wrong: acos is clamped to [-1, 1], but its derivative at exactly 1 is infinite. One training
crop shows the canonical pose and the net starts at the identity, so the angle is exactly zero.
Follows https://github.com/papagina/RotationContinuity/issues/11 and
https://github.com/geoopt/geoopt/pull/79.
True cause: prediction and target are the same rotation for one sample, and the derivative of acos at exactly
1 is infinite."""

import torch
import torch.nn.functional as F
from torch import nn


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32, bias=False), nn.ReLU())
        self.six = nn.Linear(32, 6, bias=False)
        self.register_buffer("start", torch.tensor([1.0, 0, 0, 0, 1.0, 0]))

    def forward(self, x):
        a, b = (self.six(self.body(x)) + self.start).chunk(2, dim=1)
        x1 = F.normalize(a, dim=1)
        z = F.normalize(torch.linalg.cross(x1, b), dim=1)
        return torch.stack([x1, torch.linalg.cross(z, x1), z], dim=2)


def geodesic(r1, r2):
    trace = (r1.transpose(1, 2) @ r2).diagonal(dim1=1, dim2=2).sum(-1)
    cos = ((trace - 1) / 2).clamp(-1.0, 1.0)
    return torch.acos(cos).mean()


def crops():
    g = torch.Generator().manual_seed(15)
    for i in range(12):
        x = torch.randn(10, 12, generator=g)
        axis = torch.randn(10, 3, 3, generator=g)
        target = torch.matrix_exp(0.3 * (axis - axis.transpose(1, 2)))
        if i == 8:
            x[5], target[5] = 0.0, torch.eye(3)  # black crop, canonical pose
        yield x, target


def build():
    torch.manual_seed(0)
    model = PoseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    def loss_fn(model, batch):
        x, target = batch
        return geodesic(model(x), target)

    return dict(model=model, optimizer=optimizer, batches=list(crops()), loss_fn=loss_fn, steps=12,
                autocast_dtype=None,
                truth=dict(cause="arccos_boundary", also=("singular_gradient_at_zero", "domain_error"), first_bad_step=8,
                           phase="backward", module="loss", op="aten.acos", also_op=("aten.rsqrt",), line="torch.acos(cos)", sample=5,
                           repair=("clamp(-1.0, 1.0)", "clamp(-1.0 + 1e-6, 1.0 - 1e-6)")))
