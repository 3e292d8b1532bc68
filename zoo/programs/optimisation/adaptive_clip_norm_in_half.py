"""Half-precision model, summed loss, adaptive clipping: a hook clips to a multiple of the running mean of the gradient norm and keeps that
mean in the optimizer's state. Every gradient entry is a few hundred, but the norm, taken in fp16, is above 65504: Inf. The clip then
multiplies all gradients by 0 (the run silently stands still) and the running mean is Inf for ever.
True cause: the norm of finite gradients overflows."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(64, 96); s.out = nn.Linear(96, 64)
    def forward(s, x): return s.out(torch.tanh(s.inp(x)))

def build():
    torch.manual_seed(20); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    anchor = model.inp.weight
    def clip(o, *a):
        ps = [p for grp in o.param_groups for p in grp["params"] if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in ps]))
        mean = o.state[anchor].setdefault("norm_mean", norm.clone())
        coef = (2.0 * mean / (norm + 1e-3)).clamp(max=1.0) if torch.isfinite(norm) else torch.zeros_like(norm)
        for p in ps: p.grad.mul_(coef * 1e-2)
        mean.lerp_(norm, 0.1)
    opt.register_step_pre_hook(clip)
    g = torch.Generator().manual_seed(24); batches = []
    for i in range(8):
        x = torch.randn(128, 64, generator=g); y = torch.randn(128, 64, generator=g) * (100.0 if i == 5 else 1.0)
        batches.append((x.half(), y))
    def loss_fn(m, b): return ((m(b[0]).float() - b[1]) ** 2).sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="optimizer", phase="grad_clip", op="aten.linalg_vector_norm", first_bad_step=5,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["norm_mean"]))
