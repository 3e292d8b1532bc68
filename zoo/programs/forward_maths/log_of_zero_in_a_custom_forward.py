"""A custom function whose forward takes the log of its input without a floor; the input is an exact 0 after ReLU.
True cause: log of zero inside a custom forward."""
import torch, torch.nn as nn

class LogAct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return torch.log(x)
    @staticmethod
    def backward(ctx, g): (x,) = ctx.saved_tensors; return g / x
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 6); s.b = nn.Linear(6, 1)
    def forward(s, x): return s.b(LogAct.apply(torch.relu(s.a(x) + 4)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 4, generator=g) for _ in range(5)]; batches[3][1] *= 60
    def loss_fn(m, x): return m(x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
