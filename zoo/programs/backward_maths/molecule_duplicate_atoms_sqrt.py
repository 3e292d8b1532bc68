"""Molecular graph network: edge length = sqrt(sum d^2); the file lists two carbon atoms at the same place.
Forward is finite (length 0); backward of sqrt at 0 is Inf, then Inf * 0. True cause: singular gradient of sqrt at zero."""
import torch, torch.nn as nn

class EdgeLength(nn.Module):
    def forward(s, a, b): return torch.sqrt((a - b).pow(2).sum(-1))
class MolNet(nn.Module):
    def __init__(s):
        super().__init__(); s.shift = nn.Embedding(5, 3); s.length = EdgeLength(); s.msg = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))
    def forward(s, z, pos, edges):
        p = pos + 0.1 * s.shift(z); return s.msg(s.length(p[edges[0]], p[edges[1]])[:, None]).sum()

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = MolNet(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); graphs = []
    for i in range(8):
        n = 5 + i % 3; z = torch.randint(0, 5, (n,), generator=g); pos = torch.randn(n, 3, generator=g)
        if i == 4: pos[3] = pos[1]; z[3] = z[1]
        graphs.append({"z": z, "pos": pos, "edges": torch.combinations(torch.arange(n)).T, "energy": torch.randn((), generator=g)})
    def loss_fn(m, b): return (m(b["z"], b["pos"], b["edges"]) - b["energy"]) ** 2
    return dict(model=model, optimizer=opt, batches=graphs, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="length", phase="backward", op="aten.div", first_bad_step=4, loss_finite_at_first_bad_step=True))
