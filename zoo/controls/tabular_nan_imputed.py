"""CONTROL: tabular batches full of NaN and +Inf sentinels ('no upper bound'), all replaced before the first layer; regression forest-style missing flags."""
import torch, torch.nn as nn

class Clean(nn.Module):
    def forward(s, x):
        miss = torch.isnan(x); inf = torch.isinf(x); return torch.cat([torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0), miss.float(), inf.float()], -1)
def build(fix=None):
    torch.manual_seed(0); model = nn.Sequential(Clean(), nn.Linear(15, 16), nn.ReLU(), nn.Linear(16, 1)); opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = []
    for k in range(8):
        x = torch.randn(8, 5, generator=g); x[torch.rand(8, 5, generator=g) < 0.2] = float("nan"); x[k % 8, 4] = float("inf"); batches.append(dict(x=x, y=torch.randn(8, 1, generator=g), row_mean=x.mean(-1)))
    def loss_fn(m, b): return nn.functional.huber_loss(m(b["x"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
