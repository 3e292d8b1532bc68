"""Planar flow: the log-determinant is log(1 + u.psi) without abs and without the constraint on u; for some z it is the log of a negative number.
True cause: log outside its domain (argument about -4). Nothing overflows, nothing is exactly zero."""
import torch, torch.nn as nn

class Planar(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Parameter(0.1 * torch.randn(d)); s.u = nn.Parameter(0.1 * torch.randn(d)); s.b = nn.Parameter(torch.zeros(1))
    def forward(s, z):
        t = torch.tanh(z @ s.w + s.b)[:, None]
        psi = (1 - t ** 2) * s.w
        return z + s.u * t, torch.log(1 + psi @ s.u)
class Flow(nn.Module):
    def __init__(s, d=3): super().__init__(); s.steps = nn.ModuleList([Planar(d) for _ in range(4)]); s.loc = nn.Parameter(torch.zeros(d))
    def forward(s, z):
        ld = 0
        for f in s.steps: z, l = f(z); ld = ld + l
        return z - s.loc, ld

def build():
    torch.manual_seed(0); model = Flow()
    with torch.no_grad():                                             # "trained" values: u.w = -5, steep but saturated for |z| large
        model.steps[2].w.copy_(torch.tensor([2.0, 0, 0])); model.steps[2].u.copy_(torch.tensor([-2.5, 0, 0]))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        z = torch.randn(8, 3, generator=g); z[:, 0] = z[:, 0].sign() * (4 + z[:, 0].abs())   # all in the saturated part: 1 + u.psi ~ 1
        if i == 3: z[6] = torch.tensor([0.01, 0.3, -0.2])             # one point near the origin: 1 - 5 = -4
        batches.append(z)
    def loss_fn(m, z):
        y, ld = m(z); return (0.5 * y.pow(2).sum(-1) - ld).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="domain_error", module="steps.2", phase="forward", op="aten.log", first_bad_step=3, grads_finite=True, note="log of a negative number: nearest slug"))
