"""A home-made clip squares and sums the gradients of all parameters. For one batch of raw photon counts they are about 1e20: finite, but their squares are not;
the factor 1 / Inf is 0 and the update vanishes without a word.
True cause: the norm of finite gradients overflows (scaling by the largest gradient first avoids it)."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 12), nn.Softsign(), nn.Linear(12, 1)); opt = torch.optim.RAdam(model.parameters(), lr=1e-3)
    def clip(o, *a):
        grads = [p.grad for p in model.parameters()]; total = sum(g.pow(2).sum() for g in grads).sqrt()
        for g in grads: g.mul_(1.0 / total.clamp(min=1.0))
    opt.register_step_pre_hook(clip); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(5, 6, generator=g), counts=torch.rand(5, 1, generator=g) * (1e21 if i == 3 else 1.0)) for i in range(5)]
    def loss_fn(m, b): return ((m(b["x"]) - 1.0).abs() * b["counts"]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="grad_clip", phase="grad_clip", op="aten.pow", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, grads_finite=True, also=["input_out_of_scale"]))
