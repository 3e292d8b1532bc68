"""CONTROL: clinical table where NaN means "not measured", in every batch. The model fills and flags them first; nothing non-finite goes further."""
import torch, torch.nn as nn

class Impute(nn.Module):
    def __init__(s, n): super().__init__(); s.fill = nn.Parameter(torch.zeros(n))
    def forward(s, x):
        miss = torch.isnan(x); return torch.cat([torch.where(miss, s.fill, x), miss.float()], -1)
def build():
    torch.manual_seed(0); model = nn.Sequential(Impute(6), nn.Linear(12, 16), nn.SiLU(), nn.Linear(16, 1)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(10):
        x = torch.randn(8, 6, generator=g); x[torch.rand(8, 6, generator=g) < 0.3] = float("nan"); batches.append(dict(x=x, y=torch.randint(0, 2, (8,), generator=g).float()))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b["x"]).squeeze(-1), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
