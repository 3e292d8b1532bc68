"""Pose estimation with the geodesic loss 2 * acos(|<q, p>|) on unit quaternions. Batch 2 holds a calibration frame whose true pose is
the identity, and the network answers exactly the identity for the blank calibration image (zero input, bias (1, 0, 0, 0)): the dot
product is exactly 1.
True cause: the slope of acos at 1 is infinite; the clamp to [-1, 1] does not help. Forward and loss are finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3, bias=False), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(6 * 36, 4)

    def forward(self, x):
        return F.normalize(self.head(self.features(x)), dim=-1)


class Geodesic(nn.Module):
    def forward(self, q, p):
        return 2 * torch.acos((q * p).sum(-1).abs().clamp(max=1.0))


class Pose(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.distance = PoseNet(), Geodesic()
        with torch.no_grad():
            self.net.head.bias.copy_(torch.tensor([1.0, 0, 0, 0]))
        self.net.head.bias.requires_grad_(False)

    def forward(self, image, pose):
        return self.distance(self.net(image), pose)


def build():
    torch.manual_seed(0)
    model = Pose()
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        image, pose = torch.rand(5, 1, 8, 8, generator=g), F.normalize(torch.randn(5, 4, generator=g), dim=-1)
        if i == 2:
            image[3], pose[3] = 0.0, torch.tensor([1.0, 0, 0, 0])
        batches.append((image, pose))

    def loss_fn(m, b):
        return m(*b).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="distance", phase="backward", op="aten.rsqrt", first_bad_step=2,
                           node="AcosBackward0", loss_finite_at_first_bad_step=True))
