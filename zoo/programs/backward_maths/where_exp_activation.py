"""A hand-made ELU, where(x > 0, x, exp(x) - 1): for x = 100 the unselected exp is Inf, dropped in the forward; the backward of exp
multiplies a gradient of 0 by it. The activation is one module called after each of two layers.
True cause: 0 * Inf in the derivative of the unselected branch."""
import torch, torch.nn as nn

class MyELU(nn.Module):
    def forward(s, x): return torch.where(x > 0, x, torch.exp(x) - 1.0)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.l1 = nn.Linear(6, 12); s.l2 = nn.Linear(12, 12); s.l3 = nn.Linear(12, 1); s.act = MyELU()
    def forward(s, x): return s.l3(s.act(s.l2(s.act(s.l1(x)))))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randn(8, 1, generator=g)) for _ in range(5)]
    batches[3][0][5] *= 150.0
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="act", phase="backward", op="aten.mul", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
