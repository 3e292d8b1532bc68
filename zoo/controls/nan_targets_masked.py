"""CONTROL: multi-task tabular data with missing labels as NaN, by design; they are selected away before the loss (index, then torch.where on constants)."""
import torch, torch.nn as nn

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = nn.Sequential(nn.Linear(9, 20), nn.SiLU(), nn.Linear(20, 3)); opt = torch.optim.AdamW(model.parameters(), lr=3e-2)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(12):
        x = torch.randn(16, 9, generator=g); y = x[:, :3] * 2; y[torch.rand(16, 3, generator=g) < 0.3] = float("nan"); batches.append({"x": x, "y": y})
    def loss_fn(m, b):
        have = ~torch.isnan(b["y"]); return nn.functional.mse_loss(m(b["x"])[have], b["y"][have])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
