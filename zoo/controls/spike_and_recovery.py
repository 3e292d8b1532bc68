"""CONTROL: two hard batches make the loss jump by a factor of thousands; Adam's normalised steps ride it out and the loss comes down again."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 1, 3, padding=1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(4, 1, 16, generator=g) * (300.0 if i in (5, 6) else 1.0) for i in range(14)]
    def loss_fn(m, b): return (m(b) - b).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=14, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
