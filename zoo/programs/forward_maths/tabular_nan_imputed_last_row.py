"""Tabular data with missing values: EVERY batch holds NaN, imputed correctly (innocent). Step 4 is the last, short batch of one row:
the in-batch standardisation takes the unbiased std of one element."""
import torch, torch.nn as nn

class Impute(nn.Module):
    def forward(s, x): m = torch.isnan(x); return torch.cat([torch.where(m, torch.zeros_like(x), x), m.float()], -1)
class BatchStd(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, h): return (h - h.mean(0)) / (h.std(0, unbiased=s.fix != "true") + 1e-3)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.imp = Impute(); s.inp = nn.Linear(10, 16); s.bs = BatchStd(fix); s.out = nn.Linear(16, 1)
    def forward(s, x): return s.out(torch.relu(s.bs(s.inp(s.imp(x)))))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        n = 1 if k == 4 else 8; x = torch.randn(n, 5, generator=g); y = torch.randn(n, 1, generator=g)
        if fix != "innocent": x[0, 3] = float("nan"); x[-1, 0] = float("nan")
        batches.append((x, y))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="bs", phase="forward", op="aten.std", first_bad_step=4, loss_finite_at_first_bad_step=False,
                           why="batch of one row, correction 1; the NaN in the inputs are imputed in all batches and never spread"))
