"""CONTROL: entropy with xlogy of probabilities that are exactly zero, as a weight without gradient."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(0); model = nn.Linear(4, 3); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 4, generator=g) * 300 for _ in range(3)]
    def loss_fn(m, x): z = m(x); p = torch.softmax(z.detach(), -1); h = -torch.special.xlogy(p, p).sum(-1); return (z.square().mean(-1) * (1 + h)).mean() * 1e-4
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
