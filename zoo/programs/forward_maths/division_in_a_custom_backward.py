"""A custom function normalises by the largest value in its backward; for a padded row that is 0.
True cause: division by zero inside a custom backward."""
import torch, torch.nn as nn

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x.tanh()
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        size = x.abs().amax(-1, keepdim=True)
        return g * (1 - x.tanh().square()) * (x / size)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 6, bias=False); s.head = nn.Linear(6, 2)
    def forward(s, x): return s.head(Scaled.apply(s.enc(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(5)]
    batches[3][0][1] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="backward", op="aten.div", first_bad_step=3))
