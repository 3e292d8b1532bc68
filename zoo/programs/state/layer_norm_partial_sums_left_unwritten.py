"""The backward of a hand-written layer norm sums the gain's gradient over groups of rows into a scratch tensor with +=. The scratch comes from torch.empty.
After https://github.com/triton-lang/triton/pull/4075 (the partial sums of dw and db are read before they are written; they must start at zero).
True cause: memory that was never written."""
import torch
from torch import nn

GROUPS = 4


class LayerNormFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
        ctx.save_for_backward(x, w, mean, rstd)
        return (x - mean) * rstd * w + b

    @staticmethod
    def backward(ctx, dy):
        x, w, mean, rstd = ctx.saved_tensors
        xhat, wdy = (x - mean) * rstd, dy * w
        dx = rstd * (wdy - wdy.mean(-1, keepdim=True) - xhat * (wdy * xhat).mean(-1, keepdim=True))
        torch.use_deterministic_algorithms(True)     # fills torch.empty with NaN, as debug runs do
        dw_parts, db_parts = torch.empty(GROUPS, x.shape[-1]), torch.empty(GROUPS, x.shape[-1])
        torch.use_deterministic_algorithms(False)
        for row in range(x.shape[0]):
            dw_parts[row % GROUPS] += dy[row] * xhat[row]
            db_parts[row % GROUPS] += dy[row]
        return dx, dw_parts.sum(0), db_parts.sum(0)


class LayerNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return LayerNormFn.apply(x, self.gain, self.shift)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), LayerNorm(10), nn.Linear(10, 1))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(9, 6, generator=g), torch.randn(9, 1, generator=g)) for _ in range(3)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]), steps=3, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=("backend_or_kernel_bug",), module="2", phase="backward", op="aten.empty", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, line="dw_parts, db_parts = torch.empty(",
                           why="the partial sums are added to rows that nothing has set to zero"))
