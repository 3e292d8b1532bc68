"""CONTROL: NaN targets that are indexed away before the loss."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(0); model = nn.Linear(4, 1); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randn(6, generator=g)) for _ in range(4)]
    for b in batches: b[1][::3] = float("nan")
    def loss_fn(m, b): keep = ~b[1].isnan(); return F.mse_loss(m(b[0]).squeeze(-1)[keep], b[1][keep])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
