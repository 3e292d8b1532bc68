"""Pose refinement: a network with a zero-initialised last layer corrects a given quaternion; the loss compares Euler angles. The first batch
holds a pose in gimbal lock, (0.5, 0.5, 0.5, -0.5): the sine of the pitch is exactly 1 and asin has an infinite slope there.
True cause: asin at its boundary; clamping to [-1, 1] does not help. Forward and loss are finite."""
import torch
import torch.nn as nn


class Pitch(nn.Module):
    def forward(self, q):
        w, x, y, z = q.unbind(-1)
        return torch.asin((2 * (w * y - z * x)).clamp(-1.0, 1.0))


class Refiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.delta = nn.Linear(6, 24), nn.Linear(24, 4)
        nn.init.zeros_(self.delta.weight)
        nn.init.zeros_(self.delta.bias)
        self.pitch = Pitch()

    def forward(self, q, obs):
        return self.pitch(q + self.delta(torch.relu(self.body(obs))))


def build():
    torch.manual_seed(0)
    model = Refiner()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(3):
        q = nn.functional.normalize(torch.randn(6, 4, generator=g), dim=-1)
        if i == 0:
            q[4] = torch.tensor([0.5, 0.5, 0.5, -0.5])
        batches.append((q, torch.randn(6, 6, generator=g), torch.rand(6, generator=g) - 0.5))

    def loss_fn(m, b):
        return (m(b[0], b[1]) - b[2]).pow(2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="pitch", phase="backward", op="aten.rsqrt", first_bad_step=0,
                           node="AsinBackward0", loss_finite_at_first_bad_step=True))
