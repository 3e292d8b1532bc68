"""RealNVP density model: affine coupling multiplies by exp(s) with an unbounded s; a heavy-tailed (but genuine) batch drives s > 88.7.
True cause: exp of a large finite value in the second coupling layer."""
import torch, torch.nn as nn

class Coupling(nn.Module):
    def __init__(s, flip):
        super().__init__(); s.flip = flip; s.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6))
    def forward(s, x):
        a, b = x.chunk(2, -1)
        if s.flip: a, b = b, a
        ls, t = s.net(a).chunk(2, -1); b = b * torch.exp(ls) + t
        return (torch.cat([b, a], -1) if s.flip else torch.cat([a, b], -1)), ls.sum(-1)
class Flow(nn.Module):
    def __init__(s): super().__init__(); s.layers = nn.ModuleList([Coupling(False), Coupling(True)])
    def forward(s, x):
        ld = 0
        for l in s.layers: x, d = l(x); ld = ld + d
        return x, ld

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Flow(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.layers[1].net[2].weight.abs_(); model.layers[1].net[2].weight.mul_(2)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(16, 6, generator=g) for _ in range(8)]
    batches[5][9] *= 45                                              # Student-t tail
    def loss_fn(m, x): z, ld = m(x); return (0.5 * z.square().sum(-1) - ld).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="layers.1", phase="forward", op="aten.exp", first_bad_step=5))
