"""Rodrigues' formula with where(theta < 1e-4, 1, sin(theta) / theta): the forward drops 0/0 for a joint at rest, the backward of the quotient does not.
True cause: the derivative of the unselected branch (joint 1 of batch 2 has an axis of exactly 0)."""
import torch, torch.nn as nn

class Rotate(nn.Module):
    def forward(s, w, v):
        theta = w.norm(dim=-1, keepdim=True)
        a = torch.where(theta < 1e-4, torch.ones_like(theta), torch.sin(theta) / theta)
        return v + a * torch.linalg.cross(w, v)
class Pose(nn.Module):
    def __init__(s): super().__init__(); s.gain = nn.Parameter(torch.ones(3)); s.lift = nn.Linear(3, 3); s.rotate = Rotate()
    def forward(s, w, v): return s.rotate(w * s.gain, s.lift(v))

def build():
    torch.manual_seed(0); model = Pose(); opt = torch.optim.Rprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [tuple(torch.randn(4, 3, generator=g) for _ in range(3)) for _ in range(5)]
    batches[2][0][1] = 0.0
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="rotate", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
