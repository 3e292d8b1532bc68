"""CONTROL: a cache made by torch.empty of which only the filled part is read."""
import torch, torch.nn as nn, torch.nn.functional as F

class C(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 4)
    def forward(s, x):
        cache = torch.empty(x.shape[0], 10, 4); cache.fill_(float("nan")); n = x.shape[1]; cache[:, :n] = s.lin(x); return cache[:, :n]
def build():
    torch.manual_seed(0); model = C(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(3, 6, 4, generator=g) for _ in range(3)]
    def loss_fn(m, x): return F.mse_loss(m(x), x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
