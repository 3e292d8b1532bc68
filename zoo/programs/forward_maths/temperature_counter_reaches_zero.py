"""Annealing in a Python counter of a module: temperature = 1 - 0.25 * calls is exactly 0.0 in the fifth forward, then negative (finite again).
The denominator is a Python float, no tensor. A replay that lets the counter run on divides by something else."""
import torch, torch.nn as nn

class Anneal(nn.Module):
    def __init__(s): super().__init__(); s.calls = 0
    def forward(s, logits):
        t = 1.0 - 0.25 * s.calls
        s.calls += 1
        return logits / t
class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(6, 4); s.anneal = Anneal()
    def forward(s, x): return s.anneal(s.body(x))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 4, (8,), generator=g)) for _ in range(7)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="anneal", phase="forward", op="aten.div", first_bad_step=4,
                           **{"not": ["hardware_fault", "compiler_bug", "lr_too_high", "softmax_fully_masked_row", "backend_or_kernel_bug"]}))
