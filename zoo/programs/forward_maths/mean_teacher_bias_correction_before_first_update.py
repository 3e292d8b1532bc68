"""Mean teacher: consistency loss against an exponential moving average of the student's weights.

What goes wrong: the average starts at zero and is debiased by 1 - decay^n as in Adam, but the teacher
is asked before its first update (n = 0), so all its weights are 0/0.
True cause: the teacher's average is debiased before its first update, zero divided by 1 - decay^0 = 0, so the
teacher's weights are NaN."""
import copy

import torch
import torch.nn.functional as F
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


class MeanTeacher(nn.Module):
    def __init__(self, decay=0.99):
        super().__init__()
        self.student = mlp()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.decay = decay
        self.register_buffer("updates", torch.tensor(0.0))
        self.average = [torch.zeros_like(p) for p in self.student.parameters()]

    @torch.no_grad()
    def refresh_teacher(self):
        correction = 1 - self.decay ** self.updates
        for t, a in zip(self.teacher.parameters(), self.average):
            t.copy_(a / correction)

    @torch.no_grad()
    def update_average(self):
        self.updates += 1
        for a, s in zip(self.average, self.student.parameters()):
            a.mul_(self.decay).add_(s, alpha=1 - self.decay)


def build():
    torch.manual_seed(0)
    model = MeanTeacher()
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.05, momentum=0.9)
    batches = [(torch.randn(16, 8), torch.randint(0, 4, (16,)), torch.randn(32, 8)) for _ in range(10)]

    def loss_fn(model, batch):
        x, y, unlabelled = batch
        model.refresh_teacher()
        model.update_average()
        s = model.student(unlabelled + 0.1).log_softmax(-1)
        t = model.teacher(unlabelled).softmax(-1)
        return F.cross_entropy(model.student(x), y) + F.kl_div(s, t, reduction="batchmean")

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("ema_poisoned",), first_bad_step=0, phase="forward", module="loss",
                           op="aten.div", also_module=("teacher.0",), also_phase=("state",), line="t.copy_(a / correction)",
                           repair=("        model.refresh_teacher()\n        model.update_average()", "        model.update_average()\n        model.refresh_teacher()")))
