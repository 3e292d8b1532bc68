"""The inverse square root of the degrees is Inf for isolated nodes and is replaced by 0 at once, on values without a gradient. Healthy."""
import torch
from torch import nn


class Conv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x, adj):
        d = adj.sum(1).pow(-0.5)
        d[d == float("inf")] = 0
        return self.lin(d[:, None] * adj * d[None] @ x)


def build():
    torch.manual_seed(2)
    net = nn.ModuleList([Conv(4, 8), Conv(8, 3)])
    g = torch.Generator().manual_seed(3)
    graphs = []
    for _ in range(4):
        a = (torch.rand(6, 6, generator=g) < 0.4).float()
        a = torch.maximum(a, a.T)
        a[5], a[:, 5] = 0, 0
        graphs.append((torch.randn(6, 4, generator=g), a, torch.randint(0, 3, (6,), generator=g)))

    def loss_fn(m, b):
        x, a, y = b
        return nn.functional.cross_entropy(m[1](m[0](x, a).relu(), a), y)

    return dict(model=net, optimizer=torch.optim.Adam(net.parameters(), lr=1e-2), batches=graphs, steps=8, autocast_dtype=None, loss_fn=loss_fn,
                truth=dict(cause="benign", first_bad_step=None))
