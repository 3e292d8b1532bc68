"""Gated linear attention that divides the decay out: exp(-cumsum(log decay)) overflows on a long sequence."""
import torch, torch.nn as nn, torch.nn.functional as F

class GLA(nn.Module):
    def __init__(s, d=6): super().__init__(); s.q = nn.Linear(d, d); s.k = nn.Linear(d, d); s.v = nn.Linear(d, d); s.g = nn.Linear(d, d)
    def forward(s, x):
        log_decay = F.logsigmoid(s.g(x)).cumsum(1)
        k = s.k(x) * torch.exp(-log_decay)
        state = torch.cumsum(k * s.v(x), 1)
        return s.q(x) * torch.exp(log_decay) * state
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(12, 6); s.gla = GLA(); s.head = nn.Linear(6, 12)
    def forward(s, i): return s.head(s.gla(s.emb(i)))
def build():
    torch.manual_seed(0); model = LM(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 12, (2, n), generator=g) for n in (20, 24, 20, 300)]
    def loss_fn(m, i): return F.cross_entropy(m(i[:, :-1]).flatten(0, 1), i[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="gla", phase="forward", op="aten.exp", first_bad_step=3, line="torch.exp(-log_decay)"))
