"""Energies in SI units: the loss is about 1e25 by design, the rate is 1e-27, and training is healthy. Clipping is switched on at step 2 (end of warm-up): the squares in the norm overflow, the norm is Inf,
and clip_grad_norm_ multiplies every (finite) gradient by 0."""
import torch, torch.nn as nn
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 1)); opt = torch.optim.SGD(model.parameters(), lr=1e-27); n = [0]
    def clip(o, *a):
        if n[0] >= 2: nn.utils.clip_grad_norm_(model.parameters(), 1e25)
        n[0] += 1
    opt.register_step_pre_hook(clip)
    g = torch.Generator().manual_seed(1); bs = [(torch.randn(16, 4, generator=g), torch.randn(16, 1, generator=g)) for _ in range(6)]
    def loss_fn(m, b): return 1e25 * nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="optimizer", phase="grad_clip", op="aten._foreach_norm", first_bad_step=2, loss_finite_at_first_bad_step=True, grads_finite=True, op_note="clip_grad_norm_ calls aten._foreach_norm, then aten.linalg_vector_norm over the per-tensor norms",
                           why="All gradients are finite (about 1e24), their squared sum is not representable."))
