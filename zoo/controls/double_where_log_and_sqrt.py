"""CONTROL: the correct double-where: log and sqrt only see safe values, so the unselected branch is finite; masked log-probabilities of -Inf are filled before the product."""
import torch, torch.nn as nn
class SafeLog(nn.Module):
    def forward(s, x):
        ok = x > 0; safe = torch.where(ok, x, torch.ones_like(x)); return torch.where(ok, safe.log() + safe.sqrt(), torch.zeros_like(x))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(5, 8); s.f = SafeLog(); s.b = nn.Linear(8, 6)
    def forward(s, x): return s.b(s.f(s.a(x).relu()))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [(torch.randn(10, 5, generator=g), torch.rand(10, 6, generator=g) > 0.6) for _ in range(8)]
    for b in bs: b[1][:, 0] = False
    def loss_fn(m, b):
        lp = m(b[0]).masked_fill(b[1], float("-inf")).log_softmax(-1); p = lp.exp(); ent = -(p * lp.masked_fill(b[1], 0.0)).sum(-1); return ent.mean() - lp[:, 0].mean()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="Written the right way."))
