"""Weights initialised with std 1e24 (meant 1e-2) in one layer of three; the squared error overflows at once. The momentum is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.inp = nn.Linear(8, 16); s.mid = nn.Linear(16, 16); s.out = nn.Linear(16, 1)
        nn.init.normal_(s.inp.weight, std=0.1); nn.init.normal_(s.mid.weight, std=0.01 if fix == "true" else 1e24); nn.init.normal_(s.out.weight, std=0.01)
    def forward(s, x): return s.out(torch.relu(s.mid(torch.relu(s.inp(x)))))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if fix == "innocent" else 0.5)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 8, generator=g), torch.randn(8, 1, generator=g)) for _ in range(4)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: (m(b[0]) - b[1]).square().mean(), steps=4, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="mid", phase="forward", op="aten.pow", first_bad_step=0,
                           loss_finite_at_first_bad_step=False, also=[], why="std 1e24 in `mid`; its output is finite, the square is not"))
