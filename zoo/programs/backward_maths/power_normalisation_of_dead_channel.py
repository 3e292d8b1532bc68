"""Bilinear pooling with power normalisation, sign(x) |x|^0.3: once the pooled product is exactly 0 (a dead channel on one sample)
the derivative 0.3 |x|^-0.7 is Inf.
True cause: singular gradient of a power below one at zero."""
import torch, torch.nn as nn

class PowerNorm(nn.Module):
    def forward(s, x): return x.sign() * x.abs().pow(0.3)
class Bilinear(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(6, 4, bias=False); s.b = nn.Linear(6, 4, bias=False); s.power = PowerNorm(); s.head = nn.Linear(16, 3)
    def forward(s, x): return s.head(s.power((s.a(x)[:, :, None] * s.b(x)[:, None]).flatten(1)))

def build():
    torch.manual_seed(0); model = Bilinear(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 6, generator=g), torch.randint(0, 3, (5,), generator=g)) for _ in range(5)]
    batches[2][0][3] = 0.0                                                        # an empty bag of features
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="power", phase="backward", op="aten.pow", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
