"""Equivariant GNN: distances by sqrt(sum of squares) over the edges; one molecule file lists a bond of an atom with itself. Its distance is 0, its slope infinite.
Only the second layer's coordinates depend on parameters, so only there does it hurt.
True cause: gradient of sqrt at zero."""
import torch, torch.nn as nn

class Layer(nn.Module):
    def __init__(s, d=8): super().__init__(); s.edge = nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU()); s.coord = nn.Linear(d, 1); s.node = nn.Linear(2 * d, d)
    def forward(s, h, x, edges):
        i, j = edges; diff = x[i] - x[j]; dist = torch.sqrt((diff ** 2).sum(-1, keepdim=True))
        m = s.edge(torch.cat([h[i], h[j], dist], -1))
        x = x.index_add(0, i, diff * torch.tanh(s.coord(m)))
        return h + s.node(torch.cat([h, torch.zeros_like(h).index_add(0, i, m)], -1)), x
class Egnn(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(5, 8); s.layers = nn.ModuleList([Layer(), Layer()]); s.out = nn.Linear(8, 1)
    def forward(s, z, x, edges):
        h = s.emb(z)
        for layer in s.layers: h, x = layer(h, x, edges)
        return s.out(h).sum()

def build():
    torch.manual_seed(0); model = Egnn(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for k in range(5):
        e = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])
        if k == 3: e = torch.cat([e, torch.tensor([[2], [2]])], 1)
        batches.append(dict(z=torch.randint(0, 5, (4,), generator=g), x=torch.randn(4, 3, generator=g), edges=e, y=torch.randn((), generator=g)))
    def loss_fn(m, b): return (m(b["z"], b["x"], b["edges"]) - b["y"]) ** 2
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="layers.1", phase="backward", op="aten.div", also_op=["aten.sqrt"], first_bad_step=3, loss_finite_at_first_bad_step=True))
