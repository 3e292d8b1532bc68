"""Prototypical network (meta-learning): in episode 3 the support set holds no sample of class 2; the prototype is the mean of an empty selection.
The rate is raised a hundredfold in the same step (end of warm-up), which only looks guilty."""
import torch, torch.nn as nn
class Proto(nn.Module):
    def forward(self, z, y, n): return torch.stack([z[y == c].mean(0) for c in range(n)])
class ProtoNet(nn.Module):
    def __init__(self): super().__init__(); self.enc = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()); self.proto = Proto()
    def forward(self, s, ys, q):
        z = self.enc(torch.cat([s, q])); p = self.proto(z[:len(s)], ys, 4); return -(z[len(s):, None] - p[None]).pow(2).sum(-1)
def build():
    torch.manual_seed(0); model = ProtoNet(); opt = torch.optim.Adam(model.parameters(), lr=1e-5)
    def episodes():
        g = torch.Generator().manual_seed(3)
        for i in range(8):
            ys = torch.arange(4).repeat(3)
            if i == 3: ys[ys == 2] = 1; opt.param_groups[0]["lr"] = 1e-3
            yield torch.randn(12, 1, 8, 8, generator=g), ys, torch.randn(4, 1, 8, 8, generator=g), torch.tensor([0, 1, 3, 0])
    def loss_fn(m, e): s, ys, q, yq = e; return nn.functional.cross_entropy(m(s, ys, q), yq)
    return dict(model=model, optimizer=opt, batches=episodes(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="proto", phase="forward", op="aten.mean", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="mean(0) over zero support samples of class 2."))
