"""CONTROL: entropies of sparse routing probabilities with exact zeros: once by torch.special.entr-like xlogy on constants, once by the double-where
trick, and a square root guarded the same way. Zeros everywhere, no Inf in the gradients."""
import torch
import torch.nn as nn


class SparseRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 5)

    def forward(self, x):
        s = self.gate(x)
        top, idx = s.topk(2, -1)
        return torch.zeros_like(s).scatter(-1, idx, top.softmax(-1))


def entropy(p):
    safe = torch.where(p > 0, p, torch.ones_like(p))
    return -torch.where(p > 0, p * torch.log(safe), torch.zeros_like(p)).sum(-1)


def spread(p):
    safe = torch.where(p > 0, p, torch.ones_like(p))
    return torch.where(p > 0, torch.sqrt(safe), torch.zeros_like(p)).sum(-1)


def build():
    torch.manual_seed(0)
    model = SparseRouter()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(8):
        target = torch.randint(0, 3, (10, 5), generator=g).float()
        batches.append((torch.randn(10, 6, generator=g), target / target.sum(-1, keepdim=True).clamp(min=1)))

    def loss_fn(m, b):
        p, t = m(b[0]), b[1]
        return (p - t).pow(2).sum(-1).mean() - 0.01 * entropy(p).mean() + 0.01 * spread(p).mean() + torch.xlogy(t, t).sum(-1).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
