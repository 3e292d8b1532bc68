"""Tabular net: the first column is NaN where it is missing BY DESIGN (an embedding replaces it, every batch); in batch 3 a NaN stands in another column
that nobody expected to be missing. Clean labels, masks and learning rate are innocent."""
from dataclasses import dataclass
import torch, torch.nn as nn
@dataclass
class Rows:
    num: torch.Tensor
    cat: list
    y: torch.Tensor
class Tab(nn.Module):
    def __init__(self):
        super().__init__(); self.missing = nn.Parameter(torch.zeros(())); self.cats = nn.ModuleList([nn.Embedding(4, 3), nn.Embedding(6, 3)])
        self.mlp = nn.Sequential(nn.Linear(5 + 6, 16), nn.SELU(), nn.Linear(16, 1))
    def forward(self, r):
        c0 = torch.where(torch.isnan(r.num[:, :1]), self.missing, torch.nan_to_num(r.num[:, :1]))
        return self.mlp(torch.cat([c0, r.num[:, 1:]] + [e(c) for e, c in zip(self.cats, r.cat)], 1))
def build():
    torch.manual_seed(0); model = Tab(); opt = torch.optim.NAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); bs = []
    for i in range(6):
        x = torch.randn(12, 5, generator=g); x[torch.rand(12, generator=g) < 0.4, 0] = float("nan")
        if i == 3: x[7, 3] = float("nan")
        bs.append(Rows(x, [torch.randint(0, 4, (12,), generator=g), torch.randint(0, 6, (12,), generator=g)], torch.randn(12, 1, generator=g)))
    def loss_fn(m, r): return nn.functional.smooth_l1_loss(m(r), r.y)
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=3, loss_finite_at_first_bad_step=False, bad_path="num[7,3]",
                           why="num[7,3] is NaN and, unlike column 0, is not replaced by the model."))
