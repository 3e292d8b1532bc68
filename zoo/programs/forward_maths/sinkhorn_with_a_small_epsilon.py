"""Sinkhorn in the exponential domain: the kernel exp(-cost / 0.005) of a far point underflows to zero, and its marginal is divided by 0.
After https://github.com/rajewsky-lab/novosparc/issues/50 (a low epsilon raises divide by zero).
True cause: division by zero after an underflow."""
import torch
import torch.nn as nn


class OT(nn.Module):
    def __init__(self, eps=0.005, iters=5):
        super().__init__()
        self.eps, self.iters = eps, iters

    def forward(self, cost):
        K = torch.exp(-cost / self.eps)
        a, b = torch.full((cost.shape[0],), 1 / cost.shape[0]), torch.full((cost.shape[1],), 1 / cost.shape[1])
        v = torch.ones_like(b)
        for _ in range(self.iters):
            u = a / (K @ v)
            v = b / (K.T @ u)
        return (u[:, None] * K * v[None] * cost).sum()


def build():
    torch.manual_seed(5)
    model = nn.ModuleDict({"embed": nn.Linear(3, 2), "ot": OT()})
    with torch.no_grad():
        model["embed"].weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1.0, 0]])); model["embed"].bias.zero_()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    ref = torch.rand(6, 2, generator=g) * 0.3
    clouds = [torch.rand(4, 3, generator=g) * 0.3 for _ in range(4)]
    clouds[2][1, 0] = 1.4                                     # an ordinary point on the other side of the embryo

    def loss_fn(m, x):
        return m["ot"](torch.cdist(m["embed"](x), ref).square())

    return dict(model=model, optimizer=opt, batches=clouds, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("input_out_of_scale",), module="ot", phase="forward", op="aten.div", first_bad_step=2, line="u = a / (K @ v)", sample=1))
