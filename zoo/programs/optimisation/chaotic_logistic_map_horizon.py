"""A differentiable simulator iterates the logistic map, whose values stay within 0 and 1; the horizon is doubled at each step. The derivative about doubles per iteration.
True cause: an exploding gradient through a long chaotic roll-out. Loss and states are finite throughout, and the rate is tiny."""
import torch, torch.nn as nn

class Tick(nn.Module):
    def __init__(s): super().__init__(); s.r = nn.Parameter(torch.full((4,), 3.97))
    def forward(s, x): return s.r * x * (1 - x)
class Simulator(nn.Module):
    def __init__(s): super().__init__(); s.start = nn.Linear(3, 4); s.tick = Tick()
    def forward(s, obs, horizon):
        x = torch.sigmoid(s.start(obs))
        for _ in range(horizon): x = s.tick(x)
        return x

def build():
    torch.manual_seed(0); model = Simulator(); opt = torch.optim.SGD(model.parameters(), lr=1e-6); g = torch.Generator().manual_seed(1)
    opt.register_step_pre_hook(lambda o, *a: nn.utils.clip_grad_value_(model.parameters(), 1e-3))
    batches = [dict(obs=torch.randn(5, 3, generator=g), horizon=n, y=torch.rand(5, 4, generator=g)) for n in (4, 8, 16, 32, 64, 400)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b["obs"], b["horizon"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="tick", phase="backward", op="aten.mul", first_bad_step=5,
                           loss_finite_at_first_bad_step=True))
