"""CONTROL: the std aggregator of a graph network, sqrt(relu(var)). For a node with one neighbour the slope of sqrt is infinite, but
relu's backward selects 0 there, so every parameter's gradient is finite. Inside the backward an Inf exists for one operation."""
import torch
import torch.nn as nn


class StdAggregator(nn.Module):
    def forward(self, x, src, dst, n):
        deg = torch.zeros(n, 1).index_add(0, dst, torch.ones(len(dst), 1)).clamp(min=1)
        mean = torch.zeros(n, x.shape[1]).index_add(0, dst, x[src]) / deg
        mean_sq = torch.zeros(n, x.shape[1]).index_add(0, dst, x[src] * x[src]) / deg
        return torch.sqrt(torch.relu(mean_sq - mean * mean))


class Pna(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.lin, self.agg, self.out = nn.Linear(4, d), StdAggregator(), nn.Linear(2 * d, 1)

    def forward(self, x, src, dst):
        h = torch.tanh(self.lin(x))
        return self.out(torch.cat([h, self.agg(h, src, dst, len(x))], -1)).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Pna()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    i = torch.arange(8)
    src, dst = torch.cat([i, (i + 1) % 8, torch.tensor([0])]), torch.cat([(i + 1) % 8, i, torch.tensor([8])])
    batches = [(torch.randn(9, 4, generator=g), torch.randn(9, generator=g)) for _ in range(8)]

    def loss_fn(m, b):
        return ((m(b[0], src, dst) - b[1]) ** 2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
