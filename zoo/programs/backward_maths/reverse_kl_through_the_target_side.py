"""On-policy distillation with reverse divergence: the student's probabilities are passed to kl_div as the target. At a low temperature some of them are exactly zero;
the value is finite, the derivative of p log p at p = 0 is not.
After https://github.com/MakazhanAlpamys/Soup/issues/719 (reverse KL returns a finite loss with NaN gradients at temperature 0.05).
True cause: the infinite slope of p log p at zero."""
import torch
import torch.nn.functional as F
from torch import nn


def reverse_kl(student_logits, teacher_logits, mask, temperature):
    student = F.softmax(student_logits / temperature, dim=-1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=-1)
    per_token = F.kl_div(teacher, student, reduction="none").sum(-1)
    return (per_token * mask).sum() / mask.sum() * temperature ** 2


class Student(nn.Module):
    def __init__(self, vocab=12, width=16, gain=1.0):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.ff = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, vocab))
        self.gain = gain

    def forward(self, ids):
        return self.gain * self.ff(self.emb(ids))


class Annealing:
    """Sharpen the distributions as the student improves."""

    def __init__(self, start=1.0, factor=0.45, floor=0.05):
        self.t, self.factor, self.floor = start, factor, floor

    def next(self):
        value, self.t = self.t, max(self.floor, self.t * self.factor)
        return value


def build():
    torch.manual_seed(0)
    student, teacher = Student(gain=16.0), Student(gain=16.0).requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(9)
    schedule = Annealing()

    def loader():
        for _ in range(8):
            yield torch.randint(0, 12, (4, 7), generator=g), torch.ones(4, 7), schedule.next()

    def loss_fn(model, batch):
        ids, mask, temperature = batch
        return reverse_kl(model(ids), teacher(ids), mask, temperature)

    return dict(model=student, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("log_of_zero", "zero_times_inf"), module="loss", phase="backward", op="aten.div", also_op=("aten.xlogy",), first_bad_step=3,
                           loss_finite_at_first_bad_step=True, line="per_token = F.kl_div(teacher, student",
                           why="a probability that underflowed to zero has p / p = 0 / 0 and log p = -inf in its derivative"))
