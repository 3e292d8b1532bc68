"""The log-cosh loss written as log(cosh(x)): cosh overflows for an error above 89, although the loss there is only about 88.
True cause: exponential overflow in cosh (a target in centimetres among targets in metres); the numbers are quite ordinary."""
import torch, torch.nn as nn

class LogCosh(nn.Module):
    def forward(s, pred, target): return torch.log(torch.cosh(pred - target)).mean()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.rnn = nn.LSTM(2, 8, batch_first=True); s.out = nn.Linear(8, 1); s.criterion = LogCosh()
    def forward(s, x, y): return s.criterion(s.out(s.rnn(x)[0])[..., 0], y)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 6, 2, generator=g), torch.rand(4, 6, generator=g)) for _ in range(4)]
    batches[2][1][0, 3] = 170.0
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="criterion", phase="forward", op="aten.cosh", first_bad_step=2))
