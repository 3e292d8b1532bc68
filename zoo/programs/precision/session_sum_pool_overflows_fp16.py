"""Session recommender under fp16 autocast: the history is SUM-pooled; most sessions have 30 clicks, batch 3 has 3000, and the
fp16 sum passes 65504. The learning rate is tiny and the data are ordinary; in fp32 or bf16 it is fine."""
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

class Pool(nn.Module):
    def forward(self, h): return torch.einsum("btd->bd", h)
class SessionRec(nn.Module):
    def __init__(self, items=50, d=16):
        super().__init__(); self.items = nn.Embedding(items, d); self.tower = nn.Linear(d, d); self.pool = Pool(); self.norm = nn.LayerNorm(d); self.score = nn.Linear(d, items)
        nn.init.constant_(self.tower.bias, 100.0)             # 'pretrained': features have a large mean
    def user(self, ids): return self.pool(self.tower(self.items(ids)))
    def forward(self, ids):
        u = checkpoint(self.user, ids, use_reentrant=False)
        return self.score(self.norm(u.float() / ids.shape[1]))

def build():
    torch.manual_seed(0); model = SessionRec(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    mk = lambda n: (torch.randint(0, 50, (4, n), generator=g), torch.randint(0, 50, (4,), generator=g))
    batches = [mk(3000 if i == 3 else 30) for i in range(5)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="pool", phase="forward", op="aten.sum", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, why="3000 items of about 100 sum to 3e5, beyond fp16; the division by the length comes too late."))
