"""A half precision classifier whose probabilities are clamped at 1e-8 before the log."""
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(6, 4)
    def forward(s, x): return torch.softmax(s.body(x), -1)
def build():
    torch.manual_seed(0); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 6, generator=g).half(), torch.randint(0, 4, (5,), generator=g)) for _ in range(3)]; batches[2][0][3] *= 60; batches[2][1][3] = (model.body(batches[2][0][3:4]).argmin())
    def loss_fn(m, b):
        p = m(b[0]).clamp(min=1e-8)
        return -torch.log(p).gather(1, b[1][:, None]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", where="loss_fn", module="", phase="forward", op="aten.log", first_bad_step=2, line="-torch.log(p)"))
