"""A fused square root has its own backward, grad / (2 * y), without a guard; one item is compared with itself.
Written for this.
True cause: the slope of the square root at zero is infinite."""
import torch
from torch import nn


class FusedSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad / (2 * y)


class Pairs(nn.Module):
    def __init__(self, items=12):
        super().__init__()
        self.table = nn.Embedding(items, 3)

    def forward(self, i, j):
        d2 = (self.table(i) - self.table(j)).square().sum(-1)
        return FusedSqrt.apply(d2)


def build():
    torch.manual_seed(1)
    model = nn.ModuleDict({"pairs": Pairs()})
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(0)
    batches = [[torch.randperm(12, generator=g)[:6], torch.randperm(12, generator=g)[:6]] for _ in range(4)]
    for i, j in batches:
        j[i == j] = (i[i == j] + 1) % 12
    batches[2][1][4] = batches[2][0][4]             # an item that is compared with itself

    def loss_fn(m, b):
        dist = m["pairs"](*b)
        return (dist - 1).abs().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("division_by_zero",), module="pairs", phase="backward", op="aten.div", first_bad_step=2, loss_finite_at_first_bad_step=True, line="return grad / (2 * y)", sample=4))
