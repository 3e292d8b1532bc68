"""Geo-recommendation: learned coordinates, great-circle distance 2*asin(sqrt(h)); one pair is exactly antipodal, h = 1.
Forward is pi; asin'(1) = Inf. True cause: arcsine at its boundary."""
import math, torch, torch.nn as nn

class Haversine(nn.Module):
    def forward(s, a, b):
        d = b - a; h = torch.sin(d[:, 0] / 2) ** 2 + torch.cos(a[:, 0]) * torch.cos(b[:, 0]) * torch.sin(d[:, 1] / 2) ** 2
        return 2 * torch.asin(torch.sqrt(h).clamp(max=1.0))
class Geo(nn.Module):
    def __init__(s, coords): super().__init__(); s.place = nn.Embedding.from_pretrained(coords, freeze=False); s.dist = Haversine(); s.scale = nn.Parameter(torch.tensor(1.0))
    def forward(s, i, j): return s.scale * s.dist(s.place(i), s.place(j))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); g = torch.Generator().manual_seed(1)
    coords = torch.stack([torch.rand(12, generator=g) - 0.5, torch.rand(12, generator=g) * 2 - 1], 1); coords[10] = torch.tensor([0.0, 0.0]); coords[11] = torch.tensor([0.0, math.pi])
    model = Geo(coords); opt = torch.optim.SGD(model.parameters(), lr=0.01); batches = []
    for k in range(7):
        i = torch.randint(0, 5, (6,), generator=g); j = torch.randint(5, 10, (6,), generator=g)
        if k == 4: i[2], j[2] = 10, 11                               # Gulf of Guinea - mid Pacific
        batches.append((i, j, torch.rand(6, generator=g) * 2))
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="dist", phase="backward", op="aten.rsqrt", first_bad_step=4, loss_finite_at_first_bad_step=True))
