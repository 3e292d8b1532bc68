"""torch.func per-sample gradients, each divided by its norm; a blank sample has gradient exactly 0. cosine_similarity (eps) is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.func import functional_call, grad, vmap
class Unit(nn.Module):
    def __init__(s, eps): super().__init__(); s.eps = eps
    def forward(s, G): return G / (torch.linalg.vector_norm(G, dim=1, keepdim=True) + s.eps)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.core = nn.Linear(5, 1, bias=False); s.unit = Unit(1e-6 if fix == "true" else 0.0)
    def forward(s, x, y, fix):
        P = dict(s.core.named_parameters())
        def one(p, a, t): return (functional_call(s.core, p, (a[None],)) - t).square().sum()
        G = vmap(grad(one), (None, 0, 0))(P, x, y)["weight"].flatten(1); u = s.unit(G); l = vmap(one, (None, 0, 0))(P, x, y).mean() + 0.1 * (u @ u.t()).mean()
        return l if fix == "innocent" else l + 0.1 * F.cosine_similarity(G[:-1], G[1:], dim=1).mean()
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randn(6, 5, generator=g)
        if i == 2: x[3] = 0
        batches.append((x, torch.randn(6, 1, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b, fix), steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="unit", phase="forward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=False, also=[], why="gradient of the blank sample is 0: 0/0"))
