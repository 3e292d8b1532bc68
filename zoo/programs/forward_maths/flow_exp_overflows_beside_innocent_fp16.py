"""RealNVP under fp16 autocast: exp runs in fp32 anyway and its argument is ~200, so fp32 fails the same way. Half precision is innocent."""
import torch, torch.nn as nn

class Coupling(nn.Module):
    def __init__(s, d, flip, fix):
        super().__init__(); s.net = nn.Sequential(nn.Linear(d // 2, 16), nn.ReLU(), nn.Linear(16, d)); s.flip = flip; s.fix = fix
    def forward(s, x):
        a, b = x.chunk(2, -1)
        if s.flip: a, b = b, a
        ls, t = s.net(a).chunk(2, -1); ls = ls.float(); t = t.float()
        if s.fix == "true": ls = 5 * torch.tanh(ls / 5)
        b = b * torch.exp(ls) + t
        return (torch.cat([b, a], -1) if s.flip else torch.cat([a, b], -1)), ls.sum(-1)
class Flow(nn.Module):
    def __init__(s, fix): super().__init__(); s.steps = nn.ModuleList([Coupling(6, False, fix), Coupling(6, True, fix)])
    def forward(s, x):
        ld = 0
        for c in s.steps: x, l = c(x); ld = ld + l
        return x, ld

def build(fix=None):
    torch.manual_seed(0); model = Flow(fix)
    with torch.no_grad():
        for c in model.steps: c.net[2].weight.mul_(0.05)
        c = model.steps[0].net; c[0].weight[0] = torch.tensor([1.0, 0, 0]); c[0].bias[0] = -3.0; c[2].weight[0, 0] = 40.0   # a unit that wakes at x0 > 3
    opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 6, generator=g).clamp(-2.5, 2.5) for _ in range(6)]
    batches[3][4, 0] = 8.0
    def loss_fn(m, x):
        z, ld = m(x); return (0.5 * (z ** 2).sum(-1) - ld).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None if fix == "innocent" else torch.float16,
                truth=dict(cause="exp_overflow", module="steps.0", phase="forward", op="aten.exp", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["input_out_of_scale"],
                           why="log-scale about 200 is exponentiated in fp32; switching autocast off changes nothing; bounding the log-scale cures it"))
