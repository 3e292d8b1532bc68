"""A third-party softmax kernel (here a registered custom operation that works in numpy) forgets to subtract the row maximum: NaN for scores
above 88, where torch.softmax on the same input is finite.
True cause: a wrong kernel; its input is harmless."""
import numpy as np, torch, torch.nn as nn

@torch.library.custom_op("zoo_kernels::fused_softmax", mutates_args=())
def fused_softmax(x: torch.Tensor) -> torch.Tensor:
    with np.errstate(all="ignore"): e = np.exp(x.detach().numpy()); return torch.from_numpy(e / e.sum(-1, keepdims=True))
def _backward(ctx, grad): (y,) = ctx.saved_tensors; return y * (grad - (grad * y).sum(-1, keepdim=True))
fused_softmax.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output))

class FusedSoftmax(nn.Module):
    def forward(s, x): return fused_softmax(x)
class Attn(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.Linear(6, 6); s.k = nn.Linear(6, 6); s.soft = FusedSoftmax()
    def forward(s, x): return s.soft(s.q(x) @ s.k(x).transpose(1, 2)) @ x

def build():
    torch.manual_seed(0); model = nn.Sequential(Attn(), nn.Linear(6, 6)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(2, 5, 6, generator=g) * (14.0 if i == 2 else 1.0) for i in range(4)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b), b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="0.soft", phase="forward", op="zoo_kernels.fused_softmax", first_bad_step=2))
