"""A shared block refines its estimate, x <- x + 0.5 x * gate(x), without a bound: the magnitude multiplies by about 1.5 a pass and squares
itself once the gate follows it. A few more passes than usual are asked for in batch 2.
True cause: an exploding recurrence through one module that is called again and again in one forward."""
import torch, torch.nn as nn

class Refine(nn.Module):
    def __init__(s): super().__init__(); s.gate = nn.Linear(6, 6)
    def forward(s, x): return x + 0.5 * x * s.gate(x).abs()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(3, 6); s.refine = Refine(); s.out = nn.Linear(6, 1)
    def forward(s, x, n):
        x = s.inp(x)
        for _ in range(n): x = s.refine(x)
        return s.out(torch.tanh(x))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(4, 3, generator=g), n=n, y=torch.randn(4, 1, generator=g)) for n in (2, 3, 16, 3)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b["x"], b["n"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="refine", phase="forward", op="aten.mul", first_bad_step=2))
