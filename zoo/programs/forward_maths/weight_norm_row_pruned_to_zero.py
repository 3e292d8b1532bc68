"""Weight norm and structured pruning: before batch 3 the program writes ZEROS (finite!) into a whole row of v; v / ||v|| is 0/0."""
import torch, torch.nn as nn
class WNLinear(nn.Module):
    def __init__(s, i, o): super().__init__(); s.v = nn.Parameter(torch.randn(o, i) * 0.2); s.g = nn.Parameter(torch.ones(o, 1)); s.b = nn.Parameter(torch.zeros(o))
    def forward(s, x):
        w = s.g * (s.v / s.v.norm(dim=1, keepdim=True)); return nn.functional.linear(x, w, s.b)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = WNLinear(8, 16); s.act = nn.Mish(); s.dec = WNLinear(16, 2)
    def forward(s, x): return s.dec(s.act(s.enc(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1)
    def loader():
        for step in range(6):
            if step == 3: model.enc.v.data[model.enc.v.abs().sum(1).argmin()] = 0.0     # prune the weakest unit
            yield torch.randn(10, 8, generator=g), torch.randint(0, 2, (10,), generator=g)
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="enc", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="The pruned row of v is exactly 0, so weight normalisation divides 0 by a norm of 0; what was written was finite."))
