"""Regression head on BCE-with-logits with a few smoothed labels of 1.02 (out of range, but harmless): the rate of 60 is what kills the run; clean labels fail at the same step, and a tenth of the rate is fine with the dirty ones."""
import torch, torch.nn as nn
class Deep(nn.Module):
    def __init__(s): super().__init__(); s.layers = nn.ModuleList([nn.Linear(10, 24), nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 1)])
    def forward(s, x):
        for l in s.layers[:-1]: x = nn.functional.leaky_relu(l(x), 0.5)
        return s.layers[-1](x)
def build():
    torch.manual_seed(0); model = Deep(); opt = torch.optim.SGD(model.parameters(), lr=60.0); g = torch.Generator().manual_seed(1); bs = []
    for _ in range(12):
        y = torch.randint(0, 2, (32, 1), generator=g).float(); y[:3] = 1.02; bs.append((torch.randn(32, 10, generator=g), y))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="layers.2", phase="forward", op="aten.addmm", first_bad_step=4, loss_finite_at_first_bad_step=False,
                           why="Clean labels overflow at the same step; a smaller rate with the same labels stays finite."))
