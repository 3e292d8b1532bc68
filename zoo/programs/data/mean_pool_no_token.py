"""Masked mean pooling, sum(h * mask) / sum(mask), inside a sentence encoder; an empty string has no token, so 0 / 0.
True cause: a mean over zero tokens (batch 1, sample 0)."""
import torch, torch.nn as nn

class MeanPool(nn.Module):
    def forward(s, h, mask): return (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
class Encoder(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(25, 12); s.pool = MeanPool(); s.proj = nn.Linear(12, 6)
    def forward(s, ids): return s.proj(s.pool(s.emb(ids), (ids != 0).float()))

def build():
    torch.manual_seed(0); model = Encoder(); opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        a, b = torch.randint(1, 25, (2, 5, 6), generator=g).unbind(0)
        a[:, 4:] = 0
        if i == 1: a[0] = 0                                                       # ""
        batches.append((a, b))
    def loss_fn(m, b):                                                            # the encoder runs twice: a contrastive loss
        return nn.functional.cross_entropy(m(b[0]) @ m(b[1]).T, torch.arange(5))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="pool", phase="forward", op="aten.div", first_bad_step=1))
