"""Differentiable simulator of a chaotic map, unrolled a little further every step. All states stay within [-1, 1] and the rate is tiny, but the
product of Jacobians grows: the gradient norm climbs by orders of magnitude each step until the backward overflows.
True cause: an exploding gradient (its norm history shows it); neither the rate nor the forward's magnitudes."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Map(nn.Module):
    def __init__(s): super().__init__(); s.gain = nn.Parameter(torch.tensor([3.6, 3.9, 4.1, 4.3])); s.phase = nn.Parameter(torch.zeros(4))
    def forward(s, x): return torch.sin(s.gain * x + s.phase)
class Sim(nn.Module):
    def __init__(s): super().__init__(); s.obs = nn.Linear(3, 4); s.map = Map(); s.read = nn.Linear(4, 1)
    def forward(s, x, n):
        h = torch.tanh(s.obs(x))
        for _ in range(n): h = s.map(h)
        return s.read(h)

def build():
    torch.manual_seed(24); model = Sim(); opt = torch.optim.Adam(model.parameters(), lr=1e-6)
    g = torch.Generator().manual_seed(28)
    batches = [(torch.randn(8, 3, generator=g), torch.randn(8, 1, generator=g), n) for n in (2, 4, 7, 11, 16, 22, 29, 37, 180, 200)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="map", phase="backward", op="aten.mul", first_bad_step=8,
                           loss_finite_at_first_bad_step=True))
