"""CONTROL: a normalising flow on nearly degenerate data: the negative log-likelihood is negative and keeps falling (as it should: densities exceed 1),
and warm restarts lift the rate fifty-fold twice, each time with a jump of the loss that heals by itself."""  # measure only: not to be read while rules are changed
import math, torch, torch.nn as nn

class Coupling(nn.Module):
    def __init__(s, flip): super().__init__(); s.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 4)); s.flip = flip
    def forward(s, x):
        a, b = x.chunk(2, -1); a, b = (b, a) if s.flip else (a, b); sc, t = s.net(a).chunk(2, -1); sc = 3 * torch.tanh(sc / 3)
        b = b * sc.exp() + t; return torch.cat((b, a) if s.flip else (a, b), -1), sc.sum(-1)
class Flow(nn.Module):
    def __init__(s): super().__init__(); s.layers = nn.ModuleList([Coupling(i % 2 == 1) for i in range(6)])
    def forward(s, x):
        ld = 0.0
        for l in s.layers: x, d = l(x); ld = ld + d
        return 0.5 * (x ** 2).sum(-1) + 2 * math.log(2 * math.pi) - ld

def build():
    torch.manual_seed(50); model = Flow(); opt = torch.optim.Adam(model.parameters(), lr=2e-2); g = torch.Generator().manual_seed(51)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=12, eta_min=4e-4)
    opt.register_step_post_hook(lambda o, *a: sched.step())
    batches = []
    for _ in range(36):
        u = torch.randn(64, 2, generator=g); batches.append(torch.cat([u, 0.9 * u], -1) * 0.02 + 1e-3 * torch.randn(64, 4, generator=g))
    def loss_fn(m, b): return m(b).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=36, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
