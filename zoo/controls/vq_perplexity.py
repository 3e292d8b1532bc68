"""CONTROL: a codebook's perplexity with log(0) is only a metric."""
import torch, torch.nn as nn, torch.nn.functional as F

class VQ(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 4); s.codes = nn.Parameter(torch.randn(8, 4)); s.register_buffer("perplexity", torch.zeros(()), persistent=False)
    def forward(s, x):
        z = s.enc(x); index = torch.cdist(z, s.codes).argmin(1); p = F.one_hot(index, 8).float().mean(0)
        with torch.no_grad(): s.last = torch.exp(-(p * torch.log(p)).sum())
        q = s.codes[index]; return z + (q - z).detach(), ((q - z.detach()) ** 2).mean()
def build():
    torch.manual_seed(0); model = VQ(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 6, generator=g) for _ in range(5)]
    def loss_fn(m, x): z, commit = m(x); return z.square().mean() + commit
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
