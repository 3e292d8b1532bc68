"""A PNA graph network: the std aggregator is sqrt(clamp(E[x^2] - E[x]^2, min=0)) + 1e-5. Nodes with one neighbour have variance
exactly 0. In batch 3 such leaves appear. The epsilon stands outside the root, so it does not help: the slope of sqrt at 0 is inf.
True cause: singular gradient at zero. TRAP: an epsilon that does not help; the degree-0 guard (clamp(min=1)) is fine."""
import torch
import torch.nn as nn


class StdAggregator(nn.Module):
    def forward(self, x, src, dst, n):
        ones = torch.zeros(n, 1).index_add(0, dst, torch.ones(len(dst), 1)).clamp(min=1)
        mean = torch.zeros(n, x.shape[1]).index_add(0, dst, x[src]) / ones
        mean_sq = torch.zeros(n, x.shape[1]).index_add(0, dst, x[src] * x[src]) / ones
        return torch.sqrt((mean_sq - mean * mean).clamp(min=0)) + 1e-5


class Pna(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.lin, self.agg, self.out = nn.Linear(4, d), StdAggregator(), nn.Linear(2 * d, 1)

    def forward(self, x, src, dst):
        h = torch.tanh(self.lin(x))
        s = self.agg(h, src, dst, len(x))
        return self.out(torch.cat([h, s], -1)).squeeze(-1)


def ring(n):
    i = torch.arange(n)
    return torch.cat([i, (i + 1) % n]), torch.cat([(i + 1) % n, i])


def build():
    torch.manual_seed(0)
    model = Pna()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    batches = []
    for i in range(5):
        src, dst = ring(9)
        if i == 3:                                   # node 9 hangs on node 0: one neighbour
            src, dst = torch.cat([src, torch.tensor([0])]), torch.cat([dst, torch.tensor([9])])
        batches.append((torch.randn(10, 4, generator=g), src, dst, torch.randn(10, generator=g), i < 3))

    def loss_fn(m, b):
        x, src, dst, y, ring_only = b
        if ring_only:
            x, y = x[:9], y[:9]
        return ((m(x, src, dst) - y) ** 2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="agg", phase="backward", op="aten.div", first_bad_step=3,
                           node="SqrtBackward0", loss_finite_at_first_bad_step=True, trap=True))
