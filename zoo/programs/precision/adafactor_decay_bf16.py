"""A small Adafactor kept in bfloat16, resumed at update 20,000 with a fresh second moment. Its decay 1 - t^-0.8 = 0.99964 is made a bfloat16
tensor, where it rounds to 1.0: the new second moment is 0 * g^2 = 0, and g / sqrt(0) is Inf.
True cause: an optimizer constant that is not representable in bfloat16. Model, gradients and rate are fine."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class AdafactorLite(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, start=0):
        super().__init__(params, dict(lr=lr))
        self.t = start

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                decay = torch.tensor(1.0 - self.t ** -0.8, dtype=p.dtype)
                state = self.state[p]
                if "v" not in state:
                    state["v"] = torch.zeros_like(p)
                state["v"].mul_(decay).add_((1 - decay) * (p.grad * p.grad + 1e-30))
                update = p.grad / state["v"].sqrt()
                update = update / (update.pow(2).mean().sqrt()).clamp(min=1.0)
                p.sub_(group["lr"] * update)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.rnn = nn.Embedding(20, 12), nn.Linear(12, 12)
        self.out = nn.Linear(12, 20)

    def forward(self, ids):
        return self.out(torch.tanh(self.rnn(self.src(ids))))


def build():
    torch.manual_seed(0)
    model = Translator().to(torch.bfloat16)
    opt = AdafactorLite(model.parameters(), start=20000)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 20, (4, 6), generator=g), torch.randint(0, 20, (4, 6), generator=g)) for _ in range(3)]

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0]).float().flatten(0, 1), b[1].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, grads_finite=True))
