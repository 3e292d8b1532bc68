"""Augmented Lagrangian: the penalty rho (a finite buffer) is multiplied by 1e6 after every step, so loss and gradient norm grow by 1e6 each step although the sign-SGD rate is 1e-4 and the weights hardly move; a smaller rate changes nothing."""
import torch, torch.nn as nn
class SignSGD(torch.optim.Optimizer):
    def __init__(s, params, lr): super().__init__(params, dict(lr=lr))
    @torch.no_grad()
    def step(s, closure=None):
        for gr in s.param_groups:
            for p in gr["params"]:
                if p.grad is not None: p.add_(p.grad.sign(), alpha=-gr["lr"])
class Constrained(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)); s.register_buffer("rho", torch.tensor(1.0))
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = Constrained(); opt = SignSGD(model.parameters(), lr=1e-4)
    opt.register_step_post_hook(lambda o, *a: model.rho.mul_(1e6) and None)
    g = torch.Generator().manual_seed(1); bs = [(torch.randn(12, 5, generator=g), torch.randn(12, 1, generator=g)) for _ in range(9)]
    def loss_fn(m, b):
        y = m(b[0]); violation = (y.mean() - 2000.0); return nn.functional.mse_loss(y, b[1]) + m.rho * violation.square()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="loss", phase="forward", op="aten.mul", first_bad_step=6, loss_finite_at_first_bad_step=False,
                           why="A finite blow-up of the gradient norm by 1e6 a step, from the penalty and not from the rate."))
