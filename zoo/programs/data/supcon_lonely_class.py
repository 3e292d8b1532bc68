"""Supervised contrastive loss: in batch 4 one image is the only one of its class, so its mean over positives is 0/0.
True cause: the number of positives of that anchor is exactly 0. The -inf on the diagonal (self-similarity) is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F

class Encoder(nn.Module):
    def __init__(s):
        super().__init__()
        s.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        s.head = nn.Sequential(nn.Linear(24, 16), nn.GELU(), nn.Linear(16, 8))
    def forward(s, x): return F.normalize(s.head(s.stem(x)), dim=-1)

def supcon(z, y, t=0.2):
    eye = torch.eye(len(y), dtype=torch.bool)
    sim = (z @ z.T / t).masked_fill(eye, float("-inf"))
    logp = sim - torch.logsumexp(sim, 1, keepdim=True)
    pos = (y[:, None] == y[None, :]) & ~eye
    per_anchor = logp.masked_fill(~pos, 0.0).sum(1) / pos.sum(1)
    return -per_anchor.mean()

def build():
    torch.manual_seed(0); model = Encoder(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        y = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1])
        if i == 4: y[5] = 3; y[4] = 1; y[0] = 0                      # class 3 appears once, nobody else
        batches.append(dict(img=torch.randn(8, 1, 8, 8, generator=g), y=y))
    def loss_fn(m, b): return supcon(m(b["img"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=["division_by_zero"], module="loss", where="loss_fn", phase="forward", op="aten.div", first_bad_step=4, grads_finite=True))
