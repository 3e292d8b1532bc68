"""Optimal transport between two learned clouds with Sinkhorn iterations in the ordinary (not log) domain. The regularisation is annealed;
at 1e-3 (step 3) exp(-C / eps) underflows to exactly 0 for a whole row, K v is 0, and a / (K v) is Inf.
True cause: division by zero in the scaling; nothing overflows before it."""
import torch
import torch.nn as nn


class Sinkhorn(nn.Module):
    def __init__(self, iterations=5):
        super().__init__()
        self.iterations = iterations

    def forward(self, x, y, eps):
        cost = (x[:, None] - y[None]).pow(2).sum(-1)
        kernel = torch.exp(-cost / eps)
        a, b = torch.full((len(x),), 1 / len(x)), torch.full((len(y),), 1 / len(y))
        v = torch.ones(len(y))
        for _ in range(self.iterations):
            u = a / (kernel @ v)
            v = b / (kernel.t() @ u)
        return (u[:, None] * kernel * v[None] * cost).sum()


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.ot = nn.Linear(5, 2), nn.Linear(5, 2), Sinkhorn()

    def forward(self, x, y, eps):
        return self.ot(self.left(x), self.right(y), eps)


def build():
    torch.manual_seed(0)
    model = Matcher()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(7, 5, generator=g), torch.randn(6, 5, generator=g) + 2.0, eps) for eps in (1.0, 0.5, 0.25, 0.001, 0.001)]

    def loss_fn(m, b):
        return m(*b)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="ot", phase="forward", op="aten.div", first_bad_step=3))
