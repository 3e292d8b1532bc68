"""GraphSAGE averages the neighbours by dividing by the degree; a sampled subgraph has a node without an edge.
After https://github.com/MrLeeeee/GCN-GAT-and-Graphsage/issues/3 (h1 / degree: the degree of some nodes might be zero).
True cause: division by zero."""
import torch
from torch import nn


class SAGE(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.self_lin, self.nb_lin = nn.Linear(i, o), nn.Linear(i, o)

    def forward(self, x, edges):
        src, dst = edges
        total = torch.zeros_like(x).index_add(0, dst, x[src])
        degree = torch.zeros(len(x)).index_add(0, dst, torch.ones(len(dst)))
        return self.self_lin(x) + self.nb_lin(total / degree[:, None])


def build():
    torch.manual_seed(3)
    net = nn.ModuleList([SAGE(4, 8), SAGE(8, 3)])
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    ring = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    broken = torch.tensor([[0, 1, 2, 4], [1, 2, 0, 0]])            # nothing points to 3 and 4
    g = torch.Generator().manual_seed(4)
    graphs = [{"x": torch.randn(5, 4, generator=g), "edges": e, "y": torch.randint(0, 3, (5,), generator=g)} for e in (ring, ring, broken, ring)]

    def loss_fn(m, b):
        h = m[0](b["x"], b["edges"]).relu()
        return nn.functional.cross_entropy(m[1](h, b["edges"]), b["y"])

    return dict(model=net, optimizer=opt, batches=graphs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="0", phase="forward", op="aten.div", first_bad_step=2, line="total / degree[:, None]", sample=[3, 4]))
