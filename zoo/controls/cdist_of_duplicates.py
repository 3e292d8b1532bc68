"""CONTROL: cdist and pdist of equal points have zero gradients."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(0); model = nn.Linear(4, 3); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 4, generator=g) for _ in range(3)]
    for b in batches: b[1] = b[0]
    def loss_fn(m, x): z = m(x); return torch.cdist(z, z).mean() + F.pdist(z).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
