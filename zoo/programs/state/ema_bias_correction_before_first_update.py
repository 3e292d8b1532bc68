"""Self-distillation with an exponential average of the weights, corrected for its zero start by 1 / (1 - decay**t). The teacher is built at
step 2 before its first update, when t = 0: the correction is 0/0 and the averaged weights are NaN. The student is healthy.
True cause: the average is poisoned (its correction divides by zero)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(F.gelu(self.a(x)))


class Average(nn.Module):
    def __init__(self, source, decay=0.95):
        super().__init__()
        self.decay, self.t = decay, 0
        for n, p in source.named_parameters():
            self.register_buffer("sum_" + n.replace(".", "_"), torch.zeros_like(p))
            self.register_buffer("avg_" + n.replace(".", "_"), torch.zeros_like(p))

    @torch.no_grad()
    def update(self, source):
        self.t += 1
        for n, p in source.named_parameters():
            getattr(self, "sum_" + n.replace(".", "_")).lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def weights(self, source):
        correction = torch.tensor(1 - self.decay ** self.t)
        out = {}
        for n, _ in source.named_parameters():
            avg = getattr(self, "avg_" + n.replace(".", "_"))
            avg.copy_(getattr(self, "sum_" + n.replace(".", "_")) / correction)
            out[n] = avg
        return out


class SelfDistil(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Student()
        self.average = Average(self.student)


def build():
    torch.manual_seed(0)
    model = SelfDistil()
    opt = torch.optim.AdamW(model.student.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(8, 6, generator=g), "y": torch.randint(0, 4, (8,), generator=g), "distil": i >= 2} for i in range(5)]

    def loss_fn(m, b):
        logits = m.student(b["x"])
        loss = F.cross_entropy(logits, b["y"])
        if b["distil"]:
            with torch.no_grad():
                soft = torch.func.functional_call(m.student, m.average.weights(m.student), (b["x"],)).softmax(-1)
            loss = loss + 0.5 * F.cross_entropy(logits, soft)
            m.average.update(m.student)
        return loss

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="loss", phase="forward", op="aten.div", first_bad_step=2,
                           poisoned_state=["average.avg_a_weight"], also=["division_by_zero"], also_phase=["state"], also_module=["average"]))
