"""Distances of pairs of unit vectors; at step 12 a pair is the same row twice. SGD at a rate of 10 with tiny gradients.
True cause: the derivative of sqrt at zero. The rate looks high and is harmless: a hundredth of it fails at the same step."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(9); net = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 8)); opt = torch.optim.SGD(net.parameters(), lr=10.0)
    g = torch.Generator().manual_seed(2); data = []
    for i in range(16):
        a, c = torch.randn(10, 9, generator=g), torch.randn(10, 9, generator=g)
        if i == 12: c[2] = a[2]
        data.append((a, c, torch.rand(10, generator=g)))
    def loss_fn(net, b):
        a, c, y = b
        d = (F.normalize(net(a), dim=1) - F.normalize(net(c), dim=1)).pow(2).sum(1).sqrt()
        return (d - y).pow(2).mean() * 1e-2
    return dict(model=net, optimizer=opt, batches=data, loss_fn=loss_fn, steps=16, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=12, line=".sqrt()", **{"not": ["lr_too_high"]}))
