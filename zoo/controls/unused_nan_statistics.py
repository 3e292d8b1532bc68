"""CONTROL: the model computes diagnostics for a dashboard (std over a batch of one, log of a zero share, 0/0 precision); they are NaN or
Inf now and then, are kept in a Python list, and never touch the loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Router(nn.Module):
    def __init__(self, d=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList([nn.Linear(d, d) for _ in range(experts)])
        self.log = []

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top = p.argmax(-1)
        with torch.no_grad():
            share = torch.bincount(top, minlength=4).float() / len(x)
            self.log.append((torch.log(share).mean().item(), x.std(0).mean().item(), (share / share.where(share > 0.3, 0)).sum().item()))
        out = torch.stack([e(x) for e in self.experts], 1)
        return (out * p[..., None]).sum(1)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), Router(), nn.Linear(8, 3))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(n, 5, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (8, 8, 8, 1, 8, 8, 8, 1)]

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
