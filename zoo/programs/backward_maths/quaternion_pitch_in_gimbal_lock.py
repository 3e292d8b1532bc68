"""Pose regression: pitch of a predicted quaternion with asin(2(wy - zx)). In gimbal lock the argument is exactly 1.
True cause: asin'(1) is infinite; the clamp to [-1, 1] is no help. The network's last layer is a lookup of poses (an embedding), so the value is exact."""
import torch, torch.nn as nn

class ToEuler(nn.Module):
    def forward(s, q):
        w, x, y, z = q.unbind(-1)
        roll = torch.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y) + 1e-3)
        pitch = torch.asin((2 * (w * y - z * x)).clamp(-1.0, 1.0))
        return torch.stack([roll, pitch], -1)
class Pose(nn.Module):
    def __init__(s): super().__init__(); s.keyframes = nn.Embedding(6, 4); s.decoder = nn.ModuleDict(dict(euler=ToEuler(), cam=nn.Linear(2, 3)))
    def forward(s, i): return s.decoder["cam"](s.decoder["euler"](s.keyframes(i)))

def build():
    torch.manual_seed(0); model = Pose()
    with torch.no_grad():
        q = nn.functional.normalize(torch.tensor([[1.0, .1, .2, .3], [1, .3, -.2, .1], [1, -.4, .1, 0], [1, .2, .2, .2], [1, 0, -.3, .5], [1, 0, 0, 0]]), dim=-1)
        model.keyframes.weight.copy_(q)
    model.keyframes.weight.data[5] = torch.tensor([0.5, 0.0, 1.0, 0.0])     # 2 * 0.5 * 1.0 = 1 exactly
    opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.tensor([0, 1, 2, 3, 4, 0]) if i != 4 else torch.tensor([0, 1, 5, 3, 4, 0]), torch.randn(6, 3, generator=g)) for i in range(7)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="decoder.euler", phase="backward", op="aten.asin", also_op=["aten.rsqrt"], first_bad_step=4, loss_finite_at_first_bad_step=True))
