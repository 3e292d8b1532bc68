"""A Shampoo-like optimizer takes the inverse fourth root of its Kronecker factors from an eigendecomposition and has no damping. A parameter whose gradients have been zero
until the first refresh has a factor of zeros, with eigenvalues of zero.
After https://github.com/HomericIntelligence/Odyssey/pull/5497 (a Shampoo whose inverse roots were wrong for all but the tested factors).
True cause: a negative power of zero in the optimizer."""
import torch
from torch import nn


def inverse_root(factor, root=4):
    eigenvalues, basis = torch.linalg.eigh(factor)
    return basis @ torch.diag(eigenvalues.clamp(min=0.0).pow(-1.0 / root)) @ basis.t()


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, beta=0.95, refresh=3):
        super().__init__(params, dict(lr=lr, beta=beta, refresh=refresh))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.ndim < 2:
                    p.sub_(group["lr"] * p.grad)
                    continue
                s = self.state[p]
                if not s:
                    s.update(t=0, left=torch.zeros(p.shape[0], p.shape[0]), right=torch.zeros(p.shape[1], p.shape[1]),
                             pl=torch.eye(p.shape[0]), pr=torch.eye(p.shape[1]))
                s["t"] += 1
                s["left"].mul_(group["beta"]).add_(p.grad @ p.grad.t())
                s["right"].mul_(group["beta"]).add_(p.grad.t() @ p.grad)
                if s["t"] % group["refresh"] == 0:
                    s["pl"], s["pr"] = inverse_root(s["left"]), inverse_root(s["right"])
                p.sub_(group["lr"] * s["pl"] @ p.grad @ s["pr"])


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x), self.b(x)


def build():
    torch.manual_seed(0)
    model = TwoTasks()
    opt = Shampoo(model.parameters())
    g = torch.Generator().manual_seed(11)
    weights = [(1.0, 0.0)] * 4 + [(1.0, 1.0)] * 4                # the second task joins after a warm-up
    batches = [(torch.randn(32, 4, generator=g), torch.randn(32, 4, generator=g), w) for w in weights]

    def loss_fn(m, batch):
        x, y, (wa, wb) = batch
        a, b = m(x)
        return wa * nn.functional.mse_loss(a, y) + wb * nn.functional.l1_loss(b, y)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("domain_error", "zero_times_inf"), module="optimizer", phase="optimizer", op="aten.pow", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["param b.weight"], line="eigenvalues.clamp(min=0.0).pow(-1.0 / root)",
                           why="the factor of the second task's matrix is zero at the first refresh, and 0 ** -0.25 is inf"))
