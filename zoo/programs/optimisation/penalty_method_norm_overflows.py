"""A physics-informed network with a penalty method: the weight of the boundary condition grows by 1e5 in each outer iteration. At 1e20 loss
and gradients are still finite float32 numbers, but the author's optimizer squares them for its adaptive clipping: the norm is Inf,
the update is scaled to 0, and the running average of the norm, kept in the optimizer's state, is Inf for ever.
True cause: the norm of finite gradients overflows."""
import torch
import torch.nn as nn


class AdaptiveClipSgd(torch.optim.Optimizer):
    """Clips to twice the running mean of the gradient norm."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = sum(p.grad.pow(2).sum() for p in params).sqrt()
        state = self.state[params[0]]
        mean = state.get("mean_norm", norm.clone())
        scale = torch.clamp(2 * mean / norm, max=1.0) if torch.isfinite(norm) else torch.zeros(())
        state["mean_norm"] = 0.9 * mean + 0.1 * norm
        for p in params:
            p.sub_(self.param_groups[0]["lr"] * scale * p.grad / mean.clamp(min=1.0))


class Pinn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x)


def build():
    torch.manual_seed(0)
    model = Pinn()
    opt = AdaptiveClipSgd(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [{"x": torch.rand(16, 1, generator=g), "mu": 10.0 ** (5 * i)} for i in range(7)]

    def loss_fn(m, b):
        x = b["x"].requires_grad_(True)
        u = m(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        boundary = (m(torch.zeros(1, 1)) - 1.0).pow(2).sum()
        return (du + u).pow(2).mean() + b["mu"] * boundary

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="optimizer", phase="optimizer", op="aten.pow", first_bad_step=4,
                           loss_finite_at_first_bad_step=True, grads_finite=True))
