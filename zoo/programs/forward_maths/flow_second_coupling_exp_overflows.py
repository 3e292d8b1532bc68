"""An affine coupling layer, x * exp(s(x)), with an unbounded scale network: in the second coupling, called after the first has
spread the values, s(x) passes 88. The third batch holds wider (still modest) samples.
True cause: exp overflow in the coupling."""
import torch, torch.nn as nn

class Coupling(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(2, 4)
    def forward(s, x):
        a, b = x.chunk(2, -1); log_s, t = s.net(a).chunk(2, -1)
        return torch.cat([b * log_s.exp() + t, a], -1), log_s.sum(-1)
class Flow(nn.Module):
    def __init__(s): super().__init__(); s.layers = nn.ModuleList([Coupling() for _ in range(3)])
    def forward(s, x):
        logdet = 0.0
        for layer in s.layers: x, ld = layer(x); logdet = logdet + ld
        return x, logdet

def build():
    torch.manual_seed(0); model = Flow(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.layers: layer.net.weight.copy_(0.5 * torch.rand(4, 2, generator=g)); layer.net.bias.zero_()
    batches = [torch.rand(8, 4, generator=g) * (9.0 if i == 2 else 1.0) for i in range(4)]
    def loss_fn(m, b):
        z, logdet = m(b); return (torch.log1p(z.abs()).sum(-1) - logdet).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="layers.1", phase="forward", op="aten.exp", first_bad_step=2))
