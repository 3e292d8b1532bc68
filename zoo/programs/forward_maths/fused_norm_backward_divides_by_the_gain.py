"""A fused RMS norm keeps only its output and rebuilds the normalised input in backward as y / weight. A merged checkpoint has one gain of exactly zero.
After https://github.com/ServiceNow/Fast-LLM/issues/220 (NaN in the backward of the fused norm if any weight is 0).
True cause: division by zero in a custom backward."""
import torch
from torch import nn


class FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        y = x * rstd * weight
        ctx.save_for_backward(y, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, grad_y):
        y, weight, rstd = ctx.saved_tensors
        normed = y / weight                      # saves one activation
        wg = grad_y * weight
        grad_x = rstd * (wg - normed * (wg * normed).mean(-1, keepdim=True))
        return grad_x, (grad_y * normed).flatten(0, -2).sum(0), None


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return FusedRMSNorm.apply(x, self.weight, self.eps)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = RMSNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def merge(a, b, weight=0.5):
    return {k: (1 - weight) * a[k] + weight * b[k] for k in a}


def build():
    torch.manual_seed(2)
    expert, model = nn.Sequential(Block(8), Block(8)), nn.Sequential(Block(8), Block(8))
    with torch.no_grad():
        expert[1].norm.weight[5] = -1.0          # the two parents disagree in the sign of one gain
    model.load_state_dict(merge(model.state_dict(), expert.state_dict()))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(3)
    batches = [torch.randn(4, 6, 8, generator=g) for _ in range(3)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, x: nn.functional.huber_loss(m(x[:, :-1]), x[:, 1:]), steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("backend_or_kernel_bug",), module="1.norm", phase="backward", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, line="normed = y / weight", why="one gain of the merged norm is 0, and 0 / 0 is NaN"))
