"""Rotation geodesic: acos((tr R - 1)/2) when R is exactly I (zero input). asin with a limit of 1 - 1e-4 is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Geo(nn.Module):
    def __init__(s, lim): super().__init__(); s.lim = lim
    def forward(s, R): return torch.acos(((torch.einsum("bii->b", R) - 1) / 2).clamp(-s.lim, s.lim))
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.f = nn.Linear(4, 3, bias=False); s.geo = Geo(1 - 1e-5 if fix == "true" else 1.0); s.fix = fix
    def forward(s, x):
        w = torch.tanh(s.f(x)); z = torch.zeros_like(w[:, 0])
        K = torch.stack([z, -w[:, 2], w[:, 1], w[:, 2], z, -w[:, 0], -w[:, 1], w[:, 0], z], -1).view(-1, 3, 3)
        a = s.geo(torch.eye(3) + K + 0.5 * K @ K)
        return a if s.fix == "innocent" else a + 0.1 * torch.asin((1 - w.square().sum(-1)).clamp(-1 + 1e-4, 1 - 1e-4))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 4, generator=g) for _ in range(5)]; batches[2][4] = 0
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: (m(b) - 0.3).square().mean(), steps=5, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="geo", phase="backward", op="aten.rsqrt", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=[], why="trace exactly 3"))
