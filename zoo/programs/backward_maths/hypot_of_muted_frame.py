"""A spectral loss takes the magnitude as hypot(real, imaginary). The imaginary part of the 0 Hz bin is always 0; when the model mutes
a frame entirely, both are 0 and the derivative x / hypot is 0/0.
True cause: singular gradient of a magnitude at zero."""
import torch, torch.nn as nn

class Magnitude(nn.Module):
    def forward(s, x): f = torch.view_as_real(torch.fft.rfft(x)); return torch.hypot(f[..., 0], f[..., 1])
class Gate(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(16, 16); s.mag = Magnitude()
    def forward(s, x, gate): return s.mag(gate[:, None] * s.lin(x))

def build():
    torch.manual_seed(0); model = Gate(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 16, generator=g), torch.ones(4), torch.rand(4, 9, generator=g)) for _ in range(4)]
    batches[1][1][2] = 0.0                                                        # voice activity: off
    def loss_fn(m, b): return (m(b[0], b[1]) - b[2]).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="mag", phase="backward", op="aten.div", first_bad_step=1,
                           loss_finite_at_first_bad_step=True))
