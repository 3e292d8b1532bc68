"""InfoNCE written with exp and log: at a temperature of 0.01 a similarity of 0.9 is an exponent of 90; it happens when two views agree.
Written for this.
True cause: overflow of exp."""
import torch, torch.nn as nn, torch.nn.functional as F

def info_nce(a, b, tau):
    s = torch.exp(a @ b.T / tau)
    return -torch.log(s.diag() / s.sum(1)).mean()

def build():
    torch.manual_seed(9)
    enc = nn.Linear(16, 16, bias=False)
    with torch.no_grad(): enc.weight.copy_(torch.eye(16))
    opt = torch.optim.SGD(enc.parameters(), lr=1e-6); g = torch.Generator().manual_seed(10)
    batches = []
    for noise in (1.5, 1.5, 1.5, 0.05):
        x = torch.randn(5, 16, generator=g)
        batches.append((x, x + noise * torch.randn(5, 16, generator=g)))
    def loss_fn(m, views):
        a, b = (F.normalize(m(v), dim=1) for v in views)
        return info_nce(a, b, tau=0.01)
    return dict(model=enc, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=3, line="s = torch.exp(a @ b.T / tau)"))
