"""CONTROL: a lidar reports Inf for "no echo" and NaN for "no reading"; the model's first module turns them into numbers with nan_to_num and a mask
channel. The batches are non-finite every time, and that is their format."""
import torch, torch.nn as nn

class Clean(nn.Module):
    def forward(s, r): return torch.cat([torch.nan_to_num(r, nan=0.0, posinf=100.0, neginf=0.0) / 100.0, torch.isfinite(r).float()], 1)

def build():
    torch.manual_seed(0); model = nn.Sequential(Clean(), nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(60, 2)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        r = torch.rand(4, 1, 12, generator=g) * 80; u = torch.rand(4, 1, 12, generator=g); r[u < 0.1] = float("inf"); r[u > 0.95] = float("nan")
        batches.append({"range": r, "steer": torch.randn(4, 2, generator=g)})
    def loss_fn(m, b): return nn.functional.mse_loss(m(b["range"]), b["steer"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
