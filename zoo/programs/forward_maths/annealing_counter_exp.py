"""A flow with bounded exp scales (innocent); the annealing module keeps a call counter and computes exp(25 * calls), over 88.7 at the 5th call."""
import torch, torch.nn as nn, torch.nn.functional as F
class Coupling(nn.Module):
    def __init__(s, fix): super().__init__(); s.net = nn.Linear(2, 4); s.fix = fix
    def forward(s, x):
        a, b = x.chunk(2, -1); l, t = s.net(a).chunk(2, -1); l = 2 * torch.tanh(l)
        if s.fix == "innocent": l = l * 0
        return torch.cat([a, b * torch.exp(l) + t], -1), l.sum(-1)
class Anneal(nn.Module):
    def __init__(s, fix): super().__init__(); s.register_buffer("calls", torch.zeros(())); s.fix = fix
    def forward(s, nll):
        t = s.calls * 25.0; s.calls += 1
        if s.fix == "true": t = t.clamp(max=50.0)
        return nll / (1 + 1e-3 * torch.exp(t)) + nll * 0.1 + 1e-6 * torch.exp(t).log()
class Flow(nn.Module):
    def __init__(s, fix): super().__init__(); s.c1 = Coupling(fix); s.c2 = Coupling(fix); s.anneal = Anneal(fix)
    def forward(s, x):
        x, a = s.c1(x); x, b = s.c2(x.flip(-1)); return s.anneal((0.5 * x.square().sum(-1) - a - b).mean())
def build(fix=None):
    torch.manual_seed(0); model = Flow(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    return dict(model=model, optimizer=opt, batches=[torch.randn(8, 4, generator=g) for _ in range(8)], loss_fn=lambda m, b: m(b), steps=8, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="anneal", phase="forward", op="aten.exp", first_bad_step=4,
                           loss_finite_at_first_bad_step=False, also=[], why="exp(100) of the module's own counter"))
