"""Triplet loss whose anchor and positive are the same photo in one batch."""
import torch, torch.nn as nn, torch.nn.functional as F

class Embed(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = Embed(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [[torch.randn(5, 8, generator=g) for _ in range(3)] for _ in range(3)]; batches[1][1][2] = batches[1][0][2]
    def distance(a, b):
        return torch.sqrt(((a - b) ** 2).sum(-1))
    def loss_fn(m, b):
        anchor, positive, negative = (m(x) for x in b)
        return (distance(anchor, positive) - distance(anchor, negative) + 5.0).clamp(min=0).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", where="loss_fn", module="", phase="backward", op="aten.div", first_bad_step=1, line="torch.sqrt(((a - b)", loss_finite_at_first_bad_step=True))
