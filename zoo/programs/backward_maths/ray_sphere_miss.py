"""Differentiable ray caster: where(hit, -b - sqrt(disc*hit), far). A ray that misses selects `far`, but sqrt(0) sends 0*inf backward.
`far` is 1e10 (huge for a good reason: it is the clipping plane and is detached by the mask in the loss)."""
import torch, torch.nn as nn

class Sphere(nn.Module):
    def __init__(s, fix): super().__init__(); s.c = nn.Parameter(torch.tensor([0.1, 0.0, 5.0])); s.r = nn.Parameter(torch.tensor(1.5)); s.fix = fix
    def forward(s, o, d):
        oc = o - s.c; b = (oc * d).sum(-1); disc = b * b - (oc * oc).sum(-1) + s.r ** 2
        hit = disc > 0
        inner = torch.where(hit, disc, torch.ones_like(disc)) if s.fix == "true" else disc * hit
        far = 50.0 if s.fix == "innocent" else 1e10
        return torch.where(hit, -b - torch.sqrt(inner), torch.full_like(b, far)), hit
class Scene(nn.Module):
    def __init__(s, fix): super().__init__(); s.sphere = Sphere(fix)
    def forward(s, o, d): return s.sphere(o, d)

def build(fix=None):
    torch.manual_seed(0); model = Scene(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        d = torch.cat([0.1 * torch.randn(16, 2, generator=g).clamp(-1, 1), torch.ones(16, 1)], -1)
        if k == 3: d[9, 0] = 3.0                                        # looks past the sphere
        batches.append((torch.zeros(16, 3), nn.functional.normalize(d, dim=-1), 3.4 + 0.1 * torch.rand(16, generator=g)))
    def loss_fn(m, b):
        t, hit = m(b[0], b[1]); return ((t[hit] - b[2][hit]) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="sphere", phase="backward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           also=["singular_gradient_at_zero"], why="incoming gradient exactly 0 meets the infinite slope of sqrt at 0 in the unselected branch"))
