"""Pressures in pascal, squared: the gradients are about 1e20, each of them finite, but their squared sum is not. clip_grad_norm_ divides
by an infinite norm and sets every gradient to 0: from then on nothing is learned, and no number is non-finite.
True cause: the norm of finite gradients overflows."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    def clip(o, *a): nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.register_step_pre_hook(clip); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 5, generator=g), torch.randn(8, 1, generator=g), 1e10 if i == 2 else 1.0) for i in range(4)]
    def loss_fn(m, b): return ((m(b[0]) - b[1]) * b[2]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="grad_clip", phase="grad_clip", op="aten._foreach_norm", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, grads_finite=True))
