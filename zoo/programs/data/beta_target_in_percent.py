"""Cloud-cover regression with a Beta likelihood (validate_args=False for speed): one source delivers percent instead of fractions.
True cause: target 37 lies outside the support (0, 1) of the Beta distribution, log(1 - 37) is NaN."""
import torch, torch.nn as nn
from torch.distributions import Beta

class Head(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(10, 1); s.b = nn.Linear(10, 1)
    def forward(s, h): return nn.functional.softplus(s.a(h)) + 1e-2, nn.functional.softplus(s.b(h)) + 1e-2
class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(5, 10), nn.GELU()); s.head = Head()
    def forward(s, x): return s.head(s.body(x))

def build():
    torch.set_num_threads(1); torch.manual_seed(2); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(3); batches = []
    for i in range(7):
        y = torch.rand(12, 1, generator=g) * 0.9 + 0.05
        if i == 3: y[8:] = (y[8:] * 100).round()                    # second station: percent
        batches.append((torch.randn(12, 5, generator=g), y))
    def loss_fn(m, b):
        a, c = m(b[0]); return -Beta(a, c, validate_args=False).log_prob(b[1]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.xlogy", first_bad_step=3))
