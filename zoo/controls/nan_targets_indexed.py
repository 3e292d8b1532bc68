"""CONTROL: missing targets of a multi-task regression are NaN in every batch; predictions and targets are both indexed by the valid places
before anything is computed, so neither the loss nor a gradient sees a NaN."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        y = torch.randn(8, 4, generator=g); y[torch.rand(8, 4, generator=g) < 0.3] = float("nan")
        batches.append(dict(x=torch.randn(8, 6, generator=g), y=y))
    def loss_fn(m, b):
        valid = ~torch.isnan(b["y"]); return nn.functional.mse_loss(m(b["x"])[valid], b["y"][valid])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
