"""An activation kernel computes its derivative from a table for |x| < 6 and returns garbage (NaN) beyond. The forward is right; the backward
is a registered custom operation.
True cause: a wrong kernel in backward; the derivative of torch's silu on the same input is finite."""
import numpy as np, torch, torch.nn as nn

@torch.library.custom_op("zoo_kernels::table_silu_backward", mutates_args=())
def table_silu_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    v = x.detach().numpy(); s = 1 / (1 + np.exp(-v)); slope = np.where(np.abs(v) < 6, s * (1 + v * (1 - s)), np.float32("nan"))
    return torch.from_numpy(grad.detach().numpy() * slope)
class TableSiluFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x * torch.sigmoid(x)
    @staticmethod
    def backward(ctx, grad): return table_silu_backward(grad.contiguous(), *ctx.saved_tensors)
class TableSilu(nn.Module):
    def forward(s, x): return TableSiluFn.apply(x)

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 16), TableSilu(), nn.Linear(16, 1)); opt = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 5, generator=g), torch.randn(8, 1, generator=g)) for _ in range(5)]
    batches[3][0][6] *= 8.0
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="1", phase="backward", op="zoo_kernels.table_silu_backward", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
