"""Tabular regression: a merge left one target missing (NaN); features are fine. The batch is a dataclass.
Forum style: "loss is nan after some iterations, my CSV had empty cells in the label column".
True cause: NaN label in the batch."""
from dataclasses import dataclass
import torch, torch.nn as nn

@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor

class Tabular(nn.Module):
    def __init__(s):
        super().__init__(); s.bn = nn.BatchNorm1d(12); s.trunk = nn.Sequential(nn.Linear(12, 24), nn.SiLU(), nn.Linear(24, 24), nn.SiLU()); s.out = nn.Linear(24, 1)
    def forward(s, x): return s.out(s.trunk(s.bn(x))).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(3); model = Tabular(); opt = torch.optim.NAdam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(4); batches = []
    for i in range(9):
        x = torch.randn(10, 12, generator=g); batches.append(Batch(x, x[:, 0] * 2 - x[:, 3]))
    batches[5].y[7] = float("nan")
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b.x), b.y)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=5, bad_path="y[7]"))
