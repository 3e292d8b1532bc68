"""A custom autograd function (log barrier) whose backward divides by its input, which is zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class Barrier(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x); return torch.log1p(x)
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad / x
class BarrierLayer(nn.Module):
    def forward(s, x): return Barrier.apply(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(4, 6); s.barrier = BarrierLayer(); s.out = nn.Linear(6, 1)
    def forward(s, x): return s.out(s.barrier(s.inp(x).abs().clamp(max=3) * (x.abs().sum(-1, keepdim=True) > 1e-3)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), torch.randn(5, 1, generator=g)) for _ in range(3)]; batches[1][0][2] = 0
    def loss_fn(m, b): return F.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="barrier", phase="backward", op="aten.div", first_bad_step=1, loss_finite_at_first_bad_step=True))
