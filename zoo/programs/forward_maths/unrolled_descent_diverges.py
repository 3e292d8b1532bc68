"""An unrolled solver, 60 iterations of x <- x - step * A'(Ax - y) through one module: the step suits operators of norm 1, and batch 2 holds one of norm 3.
True cause: an exploding recurrence within one forward (each iteration multiplies the error by about 8)."""
import torch, torch.nn as nn

class Descent(nn.Module):
    def __init__(s): super().__init__(); s.step = nn.Parameter(torch.tensor(1.0))
    def forward(s, x, A, y): return x - s.step * torch.einsum("ij,bi->bj", A, torch.einsum("ij,bj->bi", A, x) - y)
class Unrolled(nn.Module):
    def __init__(s): super().__init__(); s.init = nn.Linear(6, 6); s.descent = Descent(); s.denoise = nn.Linear(6, 6)
    def forward(s, A, y):
        x = s.init(y)
        for _ in range(60): x = s.descent(x, A, y)
        return s.denoise(torch.tanh(x))

def build():
    torch.manual_seed(0); model = Unrolled(); opt = torch.optim.NAdam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        A = torch.linalg.qr(torch.randn(6, 6, generator=g))[0] * (3.0 if i == 2 else 1.0); x = torch.randn(4, 6, generator=g); batches.append((A, x @ A.T, x))
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="descent", phase="forward", op="aten.bmm", first_bad_step=2))
