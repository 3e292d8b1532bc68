"""Mean teacher whose averaged copy is kept in float16 to save memory. The student has a learned output gain for a target in Pascal
(about 101,000): it is fine in float32 and inf in the half copy, as soon as the copy is refreshed: after a burn-in of three steps, when
the teacher is first asked for its opinion.
True cause: the average is poisoned; student, gradients and optimizer were finite all the time."""
import torch
import torch.nn as nn


class Barometer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
        self.gain = nn.Parameter(torch.tensor(101325.0))

    def forward(self, x):
        return self.body(x).squeeze(-1) * self.gain


class MeanTeacher(nn.Module):
    def __init__(self, decay=0.9):
        super().__init__()
        self.student, self.decay = Barometer(), decay
        for name, p in self.student.named_parameters():
            self.register_buffer("ema_" + name.replace(".", "_"), torch.zeros_like(p, dtype=torch.float16))

    @torch.no_grad()
    def refresh(self):
        for name, p in self.student.named_parameters():
            slot = getattr(self, "ema_" + name.replace(".", "_"))
            slot.copy_(self.decay * slot.float() + (1 - self.decay) * p if slot.abs().sum() > 0 else p)

    def teacher(self, x):
        params = {n: getattr(self, "ema_" + n.replace(".", "_")).float() for n, _ in self.student.named_parameters()}
        return torch.func.functional_call(self.student, params, (x,))


def build():
    torch.manual_seed(0)
    model = MeanTeacher()
    opt = torch.optim.Adam(model.student.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [{"x": torch.randn(8, 5, generator=g), "y": torch.randn(8, generator=g) * 500, "refresh": i >= 3} for i in range(7)]

    def loss_fn(m, b):
        pred = m.student(b["x"])
        loss = nn.functional.smooth_l1_loss(pred, b["y"], beta=100.0)
        if b["refresh"]:
            m.refresh()
            with torch.no_grad():
                target = m.teacher(b["x"])
            loss = loss + 0.1 * nn.functional.smooth_l1_loss(pred, target, beta=100.0)
        return loss

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="loss", phase="forward", op="aten.copy_", first_bad_step=3,
                           poisoned_state=["ema_gain"], grads_finite=True, also=dict(cause=["state_overwritten", "fp16_forward_overflow"], phase=["state"], module=["student", ""], op=[None])))
