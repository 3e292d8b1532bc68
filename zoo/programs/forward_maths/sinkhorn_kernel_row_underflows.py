"""Optimal transport in the linear domain: the kernel of a far point underflows to a row of zeros."""
import torch, torch.nn as nn, torch.nn.functional as F

class Sinkhorn(nn.Module):
    def forward(s, a, b):
        kernel = torch.exp(-(a[:, None] - b[None]).pow(2).sum(-1) / 0.05)
        v = torch.ones(len(b))
        for _ in range(3):
            u = 1.0 / (kernel @ v)
            v = 1.0 / (kernel.t() @ u)
        return u[:, None] * kernel * v
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(4, 2); s.match = Sinkhorn()
    def forward(s, x, y): return s.match(torch.tanh(s.enc(x)) * 0.3, y)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 4, generator=g), torch.randn(4, 2, generator=g) * 0.2) for _ in range(3)]; batches[2] = (batches[2][0], batches[2][1] * 0 + 9.0)
    def loss_fn(m, b): plan = m(*b); return (plan.diagonal() - 1).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="match", phase="forward", op="aten.reciprocal", first_bad_step=2, line="u = 1.0 / (kernel @ v)"))
