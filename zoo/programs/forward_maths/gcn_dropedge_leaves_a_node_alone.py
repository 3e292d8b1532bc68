"""A two-layer GCN with symmetric normalisation D^-1/2 A D^-1/2 and DropEdge as augmentation, without self-loops. In epoch 3 all edges
of node 9 are dropped: its degree is zero, 0 ** -0.5 is Inf, and Inf times the zeros of its row is NaN. The true cause is the division
by a degree of zero."""
import torch
from torch import nn
import torch.nn.functional as F


class GCNConv(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)

    def forward(self, x, adj):
        deg = adj.sum(1)
        dis = deg.pow(-0.5)
        return (dis[:, None] * adj * dis[None, :]) @ self.lin(x)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(6, 16), GCNConv(16, 3)

    def forward(self, x, adj):
        return self.conv2(F.relu(self.conv1(x, adj)), adj)


def loss_fn(model, batch):
    x, adj, y, train = batch
    return F.cross_entropy(model(x, adj)[train], y[train])


def build():
    torch.manual_seed(7)
    n = 20
    x, y, train = torch.randn(n, 6), torch.randint(0, 3, (n,)), torch.arange(n) < 8
    full = torch.zeros(n, n)
    for i in range(n):
        for j in (i + 1, i + 2, i + 5):
            full[i, j % n] = full[j % n, i] = 1.0
    batches = []
    for epoch in range(6):
        adj = full.clone()
        for i in range(epoch, n, 5):
            adj[i, (i + 1) % n] = adj[(i + 1) % n, i] = 0.0
        if epoch == 3:
            adj[9, :] = adj[:, 9] = 0.0
        batches.append((x, adj, y, train))
    model = GCN()
    truth = dict(
        cause="division_by_zero", first_bad_step=3, phase="forward", module="conv1", op="aten.pow", also_op=["aten.mul"],
        line="dis = deg.pow(-0.5)",
        why="node 9 has no edge left in epoch 3: its degree is zero and the inverse square root is Inf",
        repair=("deg.pow(-0.5)", "deg.clamp(min=1).pow(-0.5)"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), batches=batches, loss_fn=loss_fn,
                steps=6, autocast_dtype=None, truth=truth)
