"""Hellinger distance of two class distributions, sqrt(p) - sqrt(q), on a softmax: for a very sure sample a probability underflows to exactly 0.
True cause: singular gradient of sqrt at zero; the forward is finite, and sqrt(p + 1e-12) has a finite gradient."""
import torch, torch.nn as nn

class Hellinger(nn.Module):
    def forward(s, p, q): return (p.sqrt() - q.sqrt()).square().sum(-1).mean()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.score = nn.Linear(5, 4); s.hellinger = Hellinger()
    def forward(s, x, q): return s.hellinger(s.score(x).softmax(-1), q)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adagrad(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(6, 5, generator=g), q=torch.rand(6, 4, generator=g).softmax(-1)) for _ in range(5)]
    batches[3]["x"][4] *= 900.0
    def loss_fn(m, b): return m(**b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="hellinger", phase="backward", op="aten.div", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
