"""A warm-up inside a module counts its own calls in a Python integer; the schedule is 0 at the fourth call and divides by it.
True cause: division by zero. A replay must not move the counter."""
import torch, torch.nn as nn

class Warm(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 2); s.calls = 0
    def forward(s, x):
        s.calls += 1
        sharp = torch.tensor(float(abs(4 - s.calls)))
        return s.lin(x) / sharp
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 4), Warm()); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="1", phase="forward", op="aten.div", first_bad_step=3,
                           never_said=["transient", "replace the device", "compiled"]))
