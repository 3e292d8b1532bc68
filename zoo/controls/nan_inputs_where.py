"""CONTROL: missing features arrive as NaN and the model itself replaces them by a learned value through torch.where on the raw input, before any
arithmetic. The gradient of the raw input is not asked for."""
import torch, torch.nn as nn

class Impute(nn.Module):
    def __init__(s, d): super().__init__(); s.fill = nn.Parameter(torch.zeros(d))
    def forward(s, x): return torch.where(torch.isnan(x), s.fill.expand_as(x), x)

def build():
    torch.manual_seed(0); model = nn.Sequential(Impute(5), nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 2)); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        x = torch.randn(8, 5, generator=g); x[torch.rand(8, 5, generator=g) < 0.2] = float("nan")
        batches.append((x, torch.randint(0, 2, (8,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
