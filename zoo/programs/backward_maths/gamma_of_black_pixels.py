"""Learned camera pipeline: (gain * image) ** (1/2.2); a night picture holds exact black pixels, slope of x^0.4545 at 0 is Inf.
True cause: x^a with a < 1 at exactly 0, in backward."""
import torch, torch.nn as nn

class Gamma(nn.Module):
    def forward(s, x): return x ** (1 / 2.2)
class ISP(nn.Module):
    def __init__(s): super().__init__(); s.gain = nn.Parameter(torch.ones(3, 1, 1)); s.gamma = Gamma()
    def forward(s, raw): return s.gamma(s.gain * raw)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.isp = ISP(); s.cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    def forward(s, raw): return s.cnn(s.isp(raw))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(1, 256, (4, 3, 8, 8), generator=g) / 255.0, torch.randint(0, 4, (4,), generator=g)) for _ in range(6)]
    batches[3][0][2, :, :4] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="isp.gamma", phase="backward", op="aten.pow", first_bad_step=3, loss_finite_at_first_bad_step=True))
