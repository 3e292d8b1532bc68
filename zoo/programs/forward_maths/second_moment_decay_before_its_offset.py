"""A factored optimizer with a schedule of its decay rate, 1 - (step - offset + 1)^-0.8. The offset is set for a resume, but the run starts from scratch: the base is
negative in the first steps, and a negative number has no fractional power.
After https://github.com/google-deepmind/optax/pull/1791 (a step offset gives a non-finite decay rate on a fresh init; the state never recovers).
True cause: a fractional power of a negative number in the optimizer."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class MomentSchedule:
    exponent: float = 0.8
    offset: int = 0

    def __call__(self, step):
        return 1.0 - (step - self.offset + 1.0).pow(-self.exponent)


class ScaledSGD(torch.optim.Optimizer):
    def __init__(self, params, lr, schedule):
        super().__init__(params, dict(lr=lr))
        self.schedule = schedule

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["count"], st["v"] = torch.zeros(()), torch.zeros_like(p)
                decay = self.schedule(st["count"])
                st["v"] = decay * st["v"] + (1 - decay) * (p.grad.square() + 1e-30)
                st["count"] += 1
                p.addcdiv_(p.grad, st["v"].sqrt(), value=-group["lr"])


def build():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.GELU(), nn.Conv1d(8, 8, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    opt = ScaledSGD(model.parameters(), lr=1e-3, schedule=MomentSchedule(offset=3))
    g = torch.Generator().manual_seed(2)
    data = [{"series": torch.randn(6, 3, 20, generator=g), "label": torch.randint(0, 2, (6,), generator=g)} for _ in range(3)]

    def loss_fn(m, batch):
        return nn.functional.cross_entropy(m(batch["series"]), batch["label"])

    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="domain_error", module="optimizer", phase="optimizer", op="aten.pow", first_bad_step=0, loss_finite_at_first_bad_step=True,
                           grads_finite=True, line="return 1.0 - (step - self.offset + 1.0).pow(-self.exponent)",
                           why="the base is 0 - 3 + 1 = -2 and the exponent is -0.8"))
