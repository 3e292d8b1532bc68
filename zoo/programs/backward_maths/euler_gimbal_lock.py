"""Pose refinement: a quaternion offset is added to a template pose and turned into Euler angles with asin(clamp(., -1, 1)). A sample without
visible keypoints gets offset 0, and its template is exactly at gimbal lock (pitch = +90 degrees).
True cause: the slope of asin at 1 is infinite; clamping to [-1, 1] does not help."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class ToEuler(nn.Module):
    def forward(s, q):
        w, x, y, z = q.unbind(-1)
        pitch = torch.asin((2 * (w * y - z * x)).clamp(-1.0, 1.0))
        yaw = torch.atan2(2 * (w * z + x * y), 1.5 - 2 * (y * y + z * z)); return torch.stack([pitch, yaw], -1)
class Refiner(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False)); s.euler = ToEuler()
    def forward(s, kp, q0): return s.euler(q0 + 0.05 * s.net(kp))

def build():
    torch.manual_seed(10); model = Refiner(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(14); batches = []
    for i in range(7):
        kp = torch.randn(5, 8, generator=g); q0 = nn.functional.normalize(torch.tensor([1., .2, .3, .1]) + 0.1 * torch.randn(5, 4, generator=g), dim=-1)
        if i == 3: kp[1] = 0.0; q0[1] = torch.tensor([0.5, 0.5, 0.5, -0.5])   # occluded person, template lies face down
        batches.append(dict(kp=kp, template=q0, angles=0.3 * torch.randn(5, 2, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b["kp"], b["template"]), b["angles"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="euler", phase="backward", op="aten.rsqrt", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
