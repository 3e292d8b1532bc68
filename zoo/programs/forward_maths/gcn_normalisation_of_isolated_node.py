"""Node classification with a dense GCN, symmetric normalisation D^-1/2 A D^-1/2, one graph per batch.

What goes wrong: self loops were forgotten, and one sampled subgraph has a node without neighbours:
its degree 0 to the power of -1/2 is inf, times the zero row of A is NaN.
Follows https://github.com/mlx-graphs/mlx-graphs/pull/18 and
https://github.com/pyg-team/pytorch_geometric/issues/61.
True cause: a node without neighbours has degree zero, and zero to the power of -1/2 is inf (then inf times
zero is NaN)."""

import torch
import torch.nn.functional as F
from torch import nn


class GCNLayer(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)

    def forward(self, x, adj):
        deg_inv_sqrt = adj.sum(1).pow(-0.5)
        norm_adj = deg_inv_sqrt[:, None] * adj * deg_inv_sqrt[None, :]
        return norm_adj @ self.lin(x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNLayer(6, 16), GCNLayer(16, 3)

    def forward(self, x, adj):
        return self.conv2(F.relu(self.conv1(x, adj)), adj)


def subgraphs():
    g = torch.Generator().manual_seed(25)
    for i in range(10):
        n = 15
        upper = torch.triu((torch.rand(n, n, generator=g) < 0.3).float(), 1)
        adj = upper + upper.t()
        ring = torch.roll(torch.eye(n), 1, 0)
        adj = ((adj + ring + ring.t()) > 0).float()
        if i == 7:
            adj[11, :] = adj[:, 11] = 0.0
        x = torch.randn(n, 6, generator=g)
        yield x, adj, (x[:, :3] + adj @ x[:, :3]).argmax(1)


def build():
    torch.manual_seed(0)
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss_fn(model, batch):
        x, adj, y = batch
        return F.cross_entropy(model(x, adj), y)

    return dict(model=model, optimizer=optimizer, batches=list(subgraphs()), loss_fn=loss_fn, steps=10,
                autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("zero_times_inf", "bad_input_data", "domain_error"), first_bad_step=7,
                           phase="forward", module="conv1", op="aten.pow", line="adj.sum(1).pow(-0.5)", sample=11,
                           repair=("adj.sum(1).pow(-0.5)", "adj.sum(1).clamp(min=1).pow(-0.5)")))
