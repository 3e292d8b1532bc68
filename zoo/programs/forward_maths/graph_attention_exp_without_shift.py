"""Graph attention that normalises with a plain exp of the edge scores."""
import torch, torch.nn as nn, torch.nn.functional as F

class Pool(nn.Module):
    def __init__(s): super().__init__(); s.score = nn.Linear(6, 1)
    def forward(s, x, graph, count):
        weight = torch.exp(s.score(x).squeeze(-1))
        total = torch.zeros(count).index_add(0, graph, weight)
        alpha = weight / total[graph]
        return torch.zeros(count, x.shape[1]).index_add(0, graph, alpha[:, None] * x)
class GNN(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(5, 6); s.pool = Pool(); s.head = nn.Linear(6, 2)
    def forward(s, x, graph, count): return s.head(s.pool(F.relu(s.lin(x)), graph, count))
def build():
    torch.manual_seed(0); model = GNN(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.pool.score.weight.fill_(1.0)
    batches = [(torch.randn(10, 5, generator=g), torch.arange(10) // 4, torch.randint(0, 2, (3,), generator=g)) for _ in range(4)]; batches[2][0][7] *= 90
    def loss_fn(m, b): return F.cross_entropy(m(b[0], b[1], 3), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="pool", phase="forward", op="aten.exp", first_bad_step=2, line="torch.exp(s.score(x)"))
