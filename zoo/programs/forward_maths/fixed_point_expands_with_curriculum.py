"""Implicit layer unrolled: z <- cell(z) + x. The cell expands (gain 2), which the early curriculum (2, 4, 6 iterations) survives;
at step 3 the schedule asks for 300. SGD's lr of 5 looks absurd, but the loss is scaled by 1e-12 (innocent)."""
import torch, torch.nn as nn

class Deq(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.cell = nn.Linear(8, 8, bias=False)
        q, _ = torch.linalg.qr(torch.randn(8, 8))
        with torch.no_grad(): s.cell.weight.copy_(q * (0.9 if fix == "true" else 2.0))
    def forward(s, x, n):
        z = torch.zeros_like(x)
        for _ in range(n): z = s.cell(z) + x
        return z
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.deq = Deq(fix); s.head = nn.Linear(8, 1)
    def forward(s, x, n): return s.head(s.deq(x, n))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-3 if fix == "innocent" else 5.0); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 8, generator=g), torch.randn(8, 1, generator=g), n) for n in (2, 4, 6, 300, 300)]
    def loss_fn(m, b): return 1e-12 * nn.functional.l1_loss(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="deq.cell", phase="forward", op="aten.mm", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="one forward multiplies 300 times by a matrix of gain 2: 2^128 is passed at iteration ~128"))
