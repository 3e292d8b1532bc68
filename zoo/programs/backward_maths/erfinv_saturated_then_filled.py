"""A rank-Gauss layer maps tanh(x) through erfinv and fills the saturated places by masked_fill; erfinv(1) is Inf there, and its derivative exp(Inf) is too.
True cause: 0 * Inf in the derivative of elements that masked_fill has replaced."""
import torch, torch.nn as nn

class RankGauss(nn.Module):
    def forward(s, x):
        u = torch.tanh(x); z = torch.erfinv(u); return z.masked_fill(u.abs() >= 1.0, 4.0)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(6, 8); s.gauss = RankGauss(); s.out = nn.Linear(8, 2)
    def forward(s, x): return s.out(s.gauss(s.inp(x)))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adadelta(model.parameters()); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 6, generator=g), torch.randn(5, 2, generator=g)) for _ in range(5)]
    batches[3][0][0] *= 25.0
    def loss_fn(m, b): return nn.functional.soft_margin_loss(m(b[0]), b[1].sign())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="gauss", phase="backward", op="aten.mul", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
