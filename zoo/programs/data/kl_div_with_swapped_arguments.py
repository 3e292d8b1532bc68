"""Distillation: the arguments of kl_div are swapped in the second stage, so the log-probabilities are taken as targets, and t * log(t) of a negative number is NaN.
After https://github.com/microsoft/LMOps/issues/38 (a distillation loss that produces NaNs, there for another reason).
True cause: the target is outside the range of the loss."""
import torch
from torch import nn
import torch.nn.functional as F


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 5))

    def forward(self, x):
        return self.net(x)


def soft(teacher, student):
    return F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")


def hard(teacher, student):
    return F.kl_div(teacher.softmax(-1), student.log_softmax(-1), reduction="batchmean")


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"student": Student()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(6, 8, generator=g), "teacher": torch.randn(6, 5, generator=g), "stage": int(k >= 3)} for k in range(5)]

    def loss_fn(m, b):
        out = m["student"](b["x"])
        return (soft, hard)[b["stage"]](b["teacher"], out)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.xlogy", also_op=("aten.kl_div", "aten.log"), first_bad_step=3, line="F.kl_div(teacher.softmax(-1)"))
