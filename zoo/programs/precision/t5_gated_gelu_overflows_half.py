"""T5 v1.1: the gated feed-forward product leaves fp16's range under autocast in the second block."""
import torch, torch.nn as nn, torch.nn.functional as F

class Gated(nn.Module):
    def __init__(s, d=16, h=32): super().__init__(); s.wi_0 = nn.Linear(d, h, bias=False); s.wi_1 = nn.Linear(d, h, bias=False); s.wo = nn.Linear(h, d, bias=False)
    def forward(s, x):
        gate = F.gelu(s.wi_0(x)); value = s.wi_1(x)
        hidden = gate * value
        return s.wo(hidden)
class T5(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(30, 16); s.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(3)]); s.ffs = nn.ModuleList([Gated() for _ in range(3)]); s.head = nn.Linear(16, 30)
    def forward(s, ids):
        x = s.emb(ids)
        for norm, ff in zip(s.norms, s.ffs): x = x + ff(norm(x))
        return s.head(x)
def build():
    torch.manual_seed(0); model = T5()
    with torch.no_grad(): model.ffs[1].wi_0.weight.mul_(400.0); model.ffs[1].wi_1.weight.mul_(400.0); model.ffs[1].wo.weight.mul_(1e-5)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 30, (4, 9), generator=g) for _ in range(3)]
    def loss_fn(m, ids): return F.cross_entropy(m(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="ffs.1", phase="forward", op="aten.mul", first_bad_step=0, line="hidden = gate * value"))
