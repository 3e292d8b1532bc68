"""Self-distillation: the momentum of the teacher is warmed up by a cosine over ema_warmup_steps, which somebody has set to zero. The first update of the teacher
multiplies its weights with NaN.
After https://github.com/lightly-ai/lightly-train/pull/550 (make it possible to set ema_warmup_steps=0).
True cause: division by zero in the teacher's schedule."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class MeanTeacher(nn.Module):
    def __init__(self, student, final=0.996, start=0.9, warmup_steps=0):
        super().__init__()
        self.student, self.teacher = student, copy.deepcopy(student).requires_grad_(False)
        self.final, self.start = final, start
        self.register_buffer("updates", torch.zeros(()))
        self.register_buffer("warmup_steps", torch.tensor(float(warmup_steps)))

    def momentum(self):
        fraction = self.updates / self.warmup_steps
        return self.final - (self.final - self.start) * 0.5 * (1 + torch.cos(math.pi * fraction.clamp(max=1.0)))

    @torch.no_grad()
    def update(self):
        m = self.momentum()
        for t, s in zip(self.teacher.parameters(), self.student.parameters()):
            t.copy_(m * t + (1 - m) * s)
        self.updates += 1

    def forward(self, weak, strong):
        with torch.no_grad():
            target = F.softmax(self.teacher(weak) / 0.5, -1)
        return F.cross_entropy(self.student(strong), target)


def build():
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Linear(9, 32), nn.GELU(), nn.Linear(32, 6))
    learner = MeanTeacher(encoder)
    opt = torch.optim.AdamW(learner.student.parameters(), lr=1e-3)
    opt.register_step_post_hook(lambda *_: learner.update())
    g = torch.Generator().manual_seed(4)
    views = []
    for _ in range(4):
        x = torch.randn(12, 9, generator=g)
        views.append((x + 0.05 * torch.randn(12, 9, generator=g), x + 0.3 * torch.randn(12, 9, generator=g)))
    return dict(model=learner, optimizer=opt, batches=views, loss_fn=lambda m, b: m(*b), steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("ema_poisoned",), module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["param teacher.0.weight"],
                           line="fraction = self.updates / self.warmup_steps", why="0 updates over 0 warm-up steps is NaN, and clamp keeps NaN"))
