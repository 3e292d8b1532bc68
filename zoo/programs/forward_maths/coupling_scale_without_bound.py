"""An affine coupling layer exponentiates the sum of its conditioning features; for a sample where all of them are high the exponent is above 88.
After https://github.com/VincentStimper/normalizing-flows/issues/47 (exp may cause inf).
True cause: overflow of exp."""
import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.d, self.net = d, nn.Linear(d, 2 * d)
        nn.init.constant_(self.net.weight, 2.4)
        nn.init.zeros_(self.net.bias)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        s, t = self.net(a).chunk(2, dim=1)
        return torch.cat([a, b * torch.exp(s) + t], 1), s.sum(1)


def build():
    torch.manual_seed(0)
    flow = nn.ModuleDict({"c": Coupling(40)})
    opt = torch.optim.SGD(flow.parameters(), lr=1e-30)
    g = torch.Generator().manual_seed(1)
    xs = [torch.rand(4, 80, generator=g) for _ in range(4)]            # every feature in [0, 1)
    xs[3][2, :40] = 0.98                                               # all conditioning features are high at once

    def loss_fn(m, x):
        z, logdet = m["c"](x)
        return (0.5 * torch.log1p(z.abs()).sum(1) - logdet).mean()

    return dict(model=flow, optimizer=opt, batches=xs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="c", phase="forward", op="aten.exp", first_bad_step=3, line="b * torch.exp(s) + t", sample=2))
