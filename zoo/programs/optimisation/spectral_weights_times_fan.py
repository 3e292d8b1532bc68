"""Fourier layers draw their complex weights with a scale of (channels * channels) ** 3 in place of its inverse: each layer multiplies the signal by millions.
True cause: bad initialisation; the first forward leaves fp32, and with rescaled weights it does not."""
import torch, torch.nn as nn

class Spectral(nn.Module):
    def __init__(s, c=6, modes=5): super().__init__(); s.weight = nn.Parameter(float(c * c) ** 3 * torch.randn(c, c, modes, dtype=torch.cfloat))
    def forward(s, x):
        f = torch.fft.rfft(x)[..., : s.weight.shape[-1]]
        return torch.fft.irfft(torch.einsum("bim,iom->bom", f, s.weight), n=x.shape[-1])
class Operator(nn.Module):
    def __init__(s):
        super().__init__(); s.lift = nn.Conv1d(1, 6, 1); s.layers = nn.ModuleList([Spectral() for _ in range(9)]); s.out = nn.Conv1d(6, 1, 1)
    def forward(s, x):
        x = s.lift(x)
        for layer in s.layers: x = nn.functional.leaky_relu(layer(x))
        return s.out(torch.tanh(x))

def build():
    torch.manual_seed(0); model = Operator(); opt = torch.optim.Adamax(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 1, 16, generator=g), torch.randn(2, 1, 16, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="layers.7", phase="forward", op="aten.bmm", first_bad_step=0))
