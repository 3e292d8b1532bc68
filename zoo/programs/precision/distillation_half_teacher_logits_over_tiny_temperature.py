"""Knowledge distillation; the teacher runs in float16 and its temperature is annealed from 4 downwards.

What goes wrong: at the end of the schedule the temperature is 0.001. The teacher's logits (some tens)
divided by it no longer fit float16 (65504), become inf, and the softmax gives NaN.
True cause: the teacher's float16 logits are divided by a temperature of 0.001 and overflow float16."""

import torch
import torch.nn.functional as F
from torch import nn

STEPS, T_START = 25, 4.0


class Temperature:
    def __init__(self, start, total):
        self.start, self.total, self.now = start, total, 0

    def __call__(self):
        value = self.start * (1 - self.now / self.total)
        self.now += 1
        return max(value, 1e-3)


class KDLoss(nn.Module):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def forward(self, student, teacher, y):
        t = self.schedule()
        soft_student = F.log_softmax(student, dim=1)
        soft_teacher = F.softmax(teacher / t, dim=1).float()
        kd = F.kl_div(soft_student, soft_teacher, reduction="batchmean")
        return 0.7 * kd + 0.3 * F.cross_entropy(student, y)


def build():
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 5)).requires_grad_(False).eval()
    teacher[2].weight.mul_(400.0)  # a confident teacher
    teacher.half()
    student = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 5))
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    criterion = KDLoss(Temperature(T_START, total=20))
    batches = [(torch.randn(16, 10), torch.randint(0, 5, (16,))) for _ in range(STEPS)]

    def loss_fn(student, batch):
        x, y = batch
        return criterion(student(x), teacher(x.half()), y)

    return dict(model=student, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=STEPS,
                autocast_dtype=None,
                truth=dict(cause="fp16_forward_overflow", also=("division_by_zero", "exp_overflow"), first_bad_step=20,
                           phase="forward", module="loss", op="aten.div", also_op=("aten._softmax",),
                           line="F.softmax(teacher / t, dim=1)",
                           repair=("F.softmax(teacher / t, dim=1)", "F.softmax(teacher.float() / t, dim=1)")))
