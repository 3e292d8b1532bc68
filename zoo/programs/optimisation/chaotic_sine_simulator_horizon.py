"""Training through a differentiable chaotic simulator x <- sin(6x + u); the curriculum lengthens the horizon. States stay in [-1, 1], the gradient grows like 3^T.
True cause: exploding gradient (clipped all along, history 1e1 .. 1e10, then 3^200 overflows in backward). The loss is finite; the rate is irrelevant."""
import torch, torch.nn as nn

class Simulator(nn.Module):
    def __init__(s): super().__init__(); s.gain = nn.Parameter(torch.tensor(6.0))
    def forward(s, x, u, T):
        for _ in range(T): x = torch.sin(s.gain * x + u)
        return x
class Controller(nn.Module):
    def __init__(s): super().__init__(); s.pi = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)); s.sim = Simulator()
    def forward(s, x, T): return s.sim(x, s.pi(x), T)

def build():
    torch.manual_seed(0); model = Controller(); opt = torch.optim.SGD(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    opt.register_step_pre_hook(lambda o, *a: nn.utils.clip_grad_norm_([p for q in o.param_groups for p in q["params"]], 1.0) and None)
    batches = [(torch.rand(6, 3, generator=g) - 0.5, T) for T in (2, 5, 9, 13, 17, 21, 200, 2)]
    def loss_fn(m, b): return (m(*b) - 0.2).pow(2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", also=["exploding_recurrence"], module="sim", phase="backward", op="aten.mul", also_op=["aten.sin"], first_bad_step=6, loss_finite_at_first_bad_step=True))
