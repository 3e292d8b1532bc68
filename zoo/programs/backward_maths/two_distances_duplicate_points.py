"""Repulsion between points: two points coincide in batch 3. vector_norm (safe subgradient 0) is innocent, hand-written sqrt of the sum of squares is not."""
import torch, torch.nn as nn, torch.nn.functional as F
class Norm(nn.Module):
    def forward(s, d): return torch.linalg.vector_norm(d, dim=-1)
class Hand(nn.Module):
    def __init__(s, eps): super().__init__(); s.eps = eps
    def forward(s, d): return (d.square().sum(-1) + s.eps).sqrt()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.f = nn.Linear(4, 3); s.near = Norm(); s.far = Hand(1e-8 if fix == "true" else 0.0); s.fix = fix
    def forward(s, x):
        z = s.f(x); i, j = torch.triu_indices(len(x), len(x), 1); d = z[i] - z[j]
        a = torch.exp(-s.near(d)).mean() if s.fix != "innocent" else 0.0
        return a + 0.1 * s.far(d).mean()
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 4, generator=g) for _ in range(6)]; batches[3][4] = batches[3][1]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(b), steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="far", phase="backward", op="aten.div", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, also=[], why="sqrt at exactly 0 for the duplicate pair; vector_norm masks its zero"))
