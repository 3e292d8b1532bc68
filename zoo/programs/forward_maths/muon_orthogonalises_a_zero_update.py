"""A port of Muon divides the momentum by its norm before the Newton-Schulz steps, without the epsilon of the original. The matrices of a branch that is switched on
later get gradients of exactly zero at first.
After https://github.com/pytorch/pytorch/pull/159465 (the reference divides by X.norm() + 1e-7; the choice of eps is discussed).
True cause: division by a norm of zero in the optimizer."""
import torch
from torch import nn


def newton_schulz(update, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update / update.norm()
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.t()
    for _ in range(steps):
        gram = x @ x.t()
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.t()


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buf, group["momentum"])
                if p.ndim == 2:
                    update = newton_schulz(update) * max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d, bias=False), nn.ReLU(), nn.Linear(2 * d, d, bias=False))
        self.side = nn.Linear(d, d, bias=False)

    def forward(self, x, gate):
        return x + self.mlp(x) + gate * self.side(x)


class Net(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.blocks = nn.ModuleList([Block(d), Block(d)])
        self.head = nn.Linear(d, 4, bias=False)

    def forward(self, x, gate):
        for block in self.blocks:
            x = block(x, gate)
        return self.head(x)


def build():
    torch.manual_seed(0)
    net = Net()
    opt = Muon(net.parameters(), weight_decay=0.01)
    g = torch.Generator().manual_seed(31)
    gates = [0.0, 0.25, 0.5, 1.0]
    batches = [(torch.randn(16, 10, generator=g), torch.randint(0, 4, (16,), generator=g), gate) for gate in gates]
    return dict(model=net, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0], b[2]), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0, loss_finite_at_first_bad_step=True,
                           grads_finite=True, poisoned_state=["param blocks.0.side.weight"], line="x = update / update.norm()",
                           why="the gate of the first batch is 0, so the update of the side matrices is zero and 0 / 0 is NaN"))
