"""SchNet-like GNN: edge lengths sqrt(|r_i - r_j|^2) with padded edges (i == j == 0) multiplied by a 0 mask afterwards. The first padded
batch is number 3: forward finite, backward 0 * Inf. Positions are refined by a layer, so the gradient flows into them."""
import torch, torch.nn as nn
class EdgeLen(nn.Module):
    def forward(s, pos, i, j, m):
        d2 = (pos[i] - pos[j]).pow(2).sum(-1)
        return torch.sqrt(d2) * m
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(5, 8); s.shift = nn.Linear(8, 3); s.length = EdgeLen(); s.filt = nn.Sequential(nn.Linear(1, 8), nn.Softplus()); s.out = nn.Linear(8, 1)
    def forward(s, z, pos, i, j, m):
        h = s.emb(z); pos = pos + 0.1 * s.shift(h); w = s.filt(s.length(pos, i, j, m)[:, None]) * m[:, None]
        return s.out(h.index_add(0, i, w * h[j])).sum()
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); bs = []
    i, j = torch.tensor([(a, b) for a in range(4) for b in range(4) if a != b]).T
    for k in range(6):
        ii, jj, m = i.clone(), j.clone(), torch.ones(12)
        if k == 3: ii[9:] = 0; jj[9:] = 0; m[9:] = 0
        bs.append(dict(z=torch.randint(0, 5, (4,), generator=g), pos=torch.randn(4, 3, generator=g) * 2, i=ii, j=jj, m=m, e=torch.randn((), generator=g)))
    def loss_fn(m, b):
        b = dict(b); e = b.pop("e"); return {"energy": (m(**b) - e) ** 2}["energy"]
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="length", phase="backward", op="aten.div", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, also=["singular_gradient_at_zero"],
                           why="The padded edges have length sqrt(0) and an incoming gradient of exactly 0 (mask product): 0/0."))
