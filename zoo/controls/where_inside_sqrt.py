"""CONTROL: the safe form of where(x > 0, sqrt(x), 0): the argument is replaced before the square root as well, so forward and backward are finite."""
import torch, torch.nn as nn

class SafeSqrt(nn.Module):
    def forward(s, x): ok = x > 0; return torch.where(ok, torch.sqrt(torch.where(ok, x, torch.ones_like(x))), torch.zeros_like(x))

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 10), SafeSqrt(), nn.Linear(10, 1)); opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 6, generator=g), torch.randn(8, 1, generator=g)) for _ in range(6)]
    batches[2][0][:] = 0.0
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
