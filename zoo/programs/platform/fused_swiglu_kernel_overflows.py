"""An in-house fused SwiGLU kernel (custom operator) computes e^x / (1 + e^x): NaN for x > 88.7, though silu(x) = x there.
True cause: that one kernel is wrong; its recorded inputs are ordinary, and the reference (float64, or F.silu) is finite."""
import torch, torch.nn as nn

def _op():
    if not hasattr(torch.ops.zoo46, "fused_swiglu"):
        @torch.library.custom_op("zoo46::fused_swiglu", mutates_args=())
        def fused_swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            e = torch.exp(x); return x * (e / (1 + e)) * y
        def bwd(ctx, g):
            x, y = ctx.saved_tensors; s = torch.sigmoid(x); return g * y * s * (1 + x * (1 - s)), g * x * s
        fused_swiglu.register_autograd(bwd, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    return torch.ops.zoo46.fused_swiglu

class SwiGLU(nn.Module):
    def __init__(s, d, h): super().__init__(); s.w = nn.Linear(d, h); s.v = nn.Linear(d, h); s.o = nn.Linear(h, d); s.op = _op()
    def forward(s, x): return s.o(s.op(s.w(x), s.v(x)))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.ffn = nn.ModuleList([SwiGLU(8, 16), SwiGLU(8, 16)]); s.out = nn.Linear(8, 1)
    def forward(s, x):
        for f in s.ffn: x = x + f(x)
        return s.out(x)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.ffn[1].w.weight.mul_(6)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 8, generator=g) * (9.0 if i == 4 else 1.0), torch.randn(6, 1, generator=g)) for i in range(7)]
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="ffn.1", phase="forward", op="zoo46.fused_swiglu", first_bad_step=4))
