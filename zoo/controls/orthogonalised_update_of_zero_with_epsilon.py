"""CONTROL: Muon with the epsilon of the original. One matrix gets gradients of exactly zero in the first batches: its update is zero over epsilon, thus zero, and it
starts to learn when its branch is switched on.
After https://github.com/pytorch/pytorch/pull/160213 (the Muon of torch, with an eps in the normalisation)."""
import torch
from torch import nn


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, eps=1e-7):
        super().__init__(params, dict(lr=lr, momentum=momentum, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad)
                x = buf / (buf.norm() + group["eps"])
                for _ in range(5):
                    gram = x @ x.t()
                    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
                p.sub_(group["lr"] * x)


class Branched(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.main, self.side, self.head = (nn.Linear(d, n, bias=False) for n in (d, d, 3))

    def forward(self, x, gate):
        return self.head(torch.relu(self.main(x)) + gate * self.side(x))


def build():
    torch.manual_seed(0)
    model = Branched()
    opt = Muon(model.parameters())
    g = torch.Generator().manual_seed(6)
    batches = [(torch.randn(12, 8, generator=g), 0.0 if i < 3 else 1.0, torch.randint(0, 3, (12,), generator=g)) for i in range(8)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0], b[1]), b[2]), steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
