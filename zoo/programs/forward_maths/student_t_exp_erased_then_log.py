"""A student-t likelihood: exp of a log-scale overflows, 1/(1 + Inf) is 0, and the log of that is -Inf. A floor under the log does not help:
the gradients are NaN all the same.
True cause: exp overflow, erased and come back."""
import torch, torch.nn as nn

class Head(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh()); s.scale = nn.Linear(8, 1)
    def forward(s, x): return s.scale(s.body(x)).squeeze(-1)
def build():
    torch.manual_seed(0); model = Head(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.ones(8)) for _ in range(5)]
    batches[3][1][2] = 400.0
    def loss_fn(m, b):
        energy = torch.exp(m(b[0]) + b[1])
        density = 1.0 / (1.0 + energy)
        return -torch.log(density).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=3))
