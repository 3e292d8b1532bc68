"""A compiled model (eager backend) in which the user's own division by a blank row fails; the compiler does what the code says.
True cause: division by zero, not the compiler."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(5, 2)
    def forward(s, x): return s.lin((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True))
def build():
    torch.manual_seed(0); net = Net(); model = torch.compile(net, backend="eager"); opt = torch.optim.Adam(net.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(4)]; batches[2][0][3] = 1.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=2, never_said=["compiled model"]))
