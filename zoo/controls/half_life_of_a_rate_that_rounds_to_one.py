"""CONTROL: an optimizer with a fast and a slow average warms up the slow rate in terms of its half-life, log(0.5) / log(beta). The rates are kept in the dtype of the
weights; 0.9995 is 1 in bfloat16 and its half-life is infinite. Its reciprocal is zero, so the rate comes out as 1, the slow average stays at zero and training goes on.
After https://github.com/bitsandbytes-foundation/bitsandbytes/pull/1360 (AdEMAMix, with schedulers for alpha and beta3)."""
import math

import torch
from torch import nn


def half_life(beta):
    return math.log(0.5) / torch.log(beta) - 1


def from_half_life(t):
    return torch.pow(torch.full_like(t, 0.5), 1 / (t + 1))


class TwoAverages(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, beta1=0.9, beta3=0.9995, alpha=2.0, warmup=20):
        super().__init__(params, dict(lr=lr, beta1=beta1, beta3=beta3, alpha=alpha, warmup=warmup))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st.update(t=0, fast=torch.zeros_like(p), slow=torch.zeros_like(p), rates=p.new_tensor([group["beta1"], group["beta3"]]))
                st["t"] += 1
                b1, b3 = st["rates"]
                mix = min(1.0, st["t"] / group["warmup"])
                b3 = from_half_life((1 - mix) * half_life(b1) + mix * half_life(b3))
                st["fast"].mul_(b1).add_((1 - b1) * p.grad)
                st["slow"].mul_(b3).add_((1 - b3) * p.grad)
                p.sub_(group["lr"] * (st["fast"] + group["alpha"] * st["slow"]).sign())


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 20), nn.GELU()).bfloat16()
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.body(x.bfloat16()).float())


def build():
    torch.manual_seed(0)
    model = Classifier()
    opt = TwoAverages(model.parameters())
    g = torch.Generator().manual_seed(8)
    batches = [(torch.randn(12, 7, generator=g), torch.randint(0, 3, (12,), generator=g)) for _ in range(8)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
