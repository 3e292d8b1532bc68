"""Pitch from a quaternion, asin(2 (wy - zx)), clamped to [-1, 1] "for safety": looking straight up the argument is exactly 1, and
asin has an infinite slope there.
True cause: asin at the boundary."""
import torch, torch.nn as nn

class Pitch(nn.Module):
    def forward(s, q): w, x, y, z = q.unbind(-1); return torch.asin((2 * (w * y - z * x)).clamp(-1.0, 1.0))
class Pose(nn.Module):
    def __init__(s): super().__init__(); s.scale = nn.Parameter(torch.ones(4)); s.pitch = Pitch()
    def forward(s, q): return s.pitch(q * s.scale)

def build():
    torch.manual_seed(0); model = Pose(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(nn.functional.normalize(torch.randn(6, 4, generator=g), dim=-1), torch.rand(6, generator=g)) for _ in range(4)]
    batches[0][0][4] = torch.tensor([1.0, 0.0, 0.5, 0.0])
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="pitch", phase="backward", op="aten.rsqrt", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
