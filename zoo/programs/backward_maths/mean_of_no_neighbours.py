"""A graph layer: where() protects the forward pass against a division by zero neighbours, not the backward pass."""
import torch, torch.nn as nn, torch.nn.functional as F

class MeanAggregate(nn.Module):
    def forward(s, x, adjacency):
        count = adjacency.sum(-1, keepdim=True); total = adjacency @ x
        share = x.abs().sum(-1, keepdim=True) * count
        return torch.where(count > 0, total / share, torch.zeros_like(total))
class GNN(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 5); s.agg = MeanAggregate(); s.head = nn.Linear(5, 2)
    def forward(s, x, adjacency): return s.head(s.agg(s.lin(x), adjacency))
def build():
    torch.manual_seed(0); model = GNN(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    def graph(lonely):
        a = (torch.rand(6, 6, generator=g) > 0.4).float(); a[:, 0] = 1
        if lonely: a[3] = 0
        return a
    batches = [(torch.randn(6, 4, generator=g), graph(i == 2), torch.randint(0, 2, (6,), generator=g)) for i in range(4)]
    def loss_fn(m, b): return F.cross_entropy(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="agg", phase="backward", op="aten.div", first_bad_step=2, line="torch.where(count > 0", loss_finite_at_first_bad_step=True))
