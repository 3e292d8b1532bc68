"""A model in fp16: its gradients are a few thousand, their norm is above 65504, and clip_grad_norm_ computes it in fp16. The infinite
norm makes the clip coefficient 0 and the update vanishes.
True cause: the gradient norm overflows in half precision, no gradient does."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(64, 32)).half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    def clip(o, *a): nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.register_step_pre_hook(clip); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(16, 64, generator=g).half(), torch.randn(16, 32, generator=g), 1.0 if i < 3 else 3e3) for i in range(5)]
    def loss_fn(m, b): return (m(b[0]).float() - b[1]).square().sum(-1).mean() * b[2]     # b[2]: the weight of the sample's source
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="grad_clip", phase="grad_clip", op="aten._foreach_norm", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, grads_finite=True))
