"""A graph layer multiplies the adjacency by 1 / degree; the fourth graph has a node without an edge, 1 / 0 = Inf, and then
Inf * 0 in the matrix product.
True cause: division by a degree of 0."""
import torch, torch.nn as nn

class MeanConv(nn.Module):
    def __init__(s, i, o): super().__init__(); s.lin = nn.Linear(i, o)
    def forward(s, x, adj): return s.lin((adj * (1.0 / adj.sum(-1, keepdim=True))) @ x)
class GNN(nn.Module):
    def __init__(s): super().__init__(); s.conv1 = MeanConv(5, 8); s.conv2 = MeanConv(8, 2)
    def forward(s, x, adj): return s.conv2(torch.relu(s.conv1(x, adj)), adj)

def build():
    torch.manual_seed(0); model = GNN(); opt = torch.optim.Adam(model.parameters(), lr=5e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        adj = (torch.rand(7, 7, generator=g) < 0.5).float(); adj = ((adj + adj.T + torch.eye(7)) > 0).float()
        if i == 3: adj[2, :] = 0; adj[:, 2] = 0
        batches.append((torch.randn(7, 5, generator=g), adj, torch.randint(0, 2, (7,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="conv1", phase="forward", op="aten.reciprocal", first_bad_step=3))
