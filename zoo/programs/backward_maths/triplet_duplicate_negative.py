"""Triplet loss with hardest-negative mining: in batch 2 a gallery image is the same image as the anchor (other label), so the
SELECTED distance is sqrt(0). The gradient of the sqrt at 0 is infinite; the forward is finite."""
import torch
from torch import nn
class Embedder(nn.Module):
    def __init__(self):
        super().__init__(); self.net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.GELU(), nn.Linear(24, 8))
    def forward(self, x): return self.net(x)
class Distances(nn.Module):
    def forward(self, a, b): return ((a[:, None] - b[None]) ** 2).sum(-1).sqrt()
class Siamese(nn.Module):
    def __init__(self): super().__init__(); self.embed = Embedder(); self.dist = Distances()
    def forward(self, q, pos, gal):
        za, zp, zg = self.embed(torch.cat([q, pos, gal])).split([len(q), len(pos), len(gal)])
        return self.dist(za, zp).diagonal(), self.dist(za, zg).min(1).values

def build():
    torch.manual_seed(1); model = Siamese(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    g = torch.Generator().manual_seed(4); out = []
    for i in range(5):
        q, p, n = (torch.randn(6, 1, 6, 6, generator=g) for _ in range(3))
        if i == 2: n[3] = q[1]
        out.append([q, p, n])
    def loss_fn(m, b):
        dp, dn = m(*b); return torch.relu(dp - dn + 5.0).mean()
    return dict(model=model, optimizer=opt, batches=out, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="dist", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=[],
                           why="min() selects a distance of exactly 0, so a non-zero gradient meets sqrt'(0)=Inf."))
