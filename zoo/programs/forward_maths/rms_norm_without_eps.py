"""RMS norm without eps on padding tokens whose embedding is zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class RMSNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.scale = nn.Parameter(torch.ones(d))
    def forward(s, x):
        inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
        return x * inverse * s.scale
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(12, 6, padding_idx=0); s.norm = RMSNorm(6); s.head = nn.Linear(6, 12)
    def forward(s, i): return s.head(s.norm(s.emb(i)))
def build():
    torch.manual_seed(0); model = LM(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(1, 12, (2, 9), generator=g) for _ in range(4)]; batches[1][1, -3:] = 0
    def loss_fn(m, i): return F.cross_entropy(m(i[:, :-1]).flatten(0, 1), i[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="norm", phase="forward", op="aten.rsqrt", first_bad_step=1, line="torch.rsqrt(x.pow(2)"))
