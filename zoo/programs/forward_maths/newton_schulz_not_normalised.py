"""A whitening layer with Newton-Schulz iterations on a matrix that was not normalised."""
import torch, torch.nn as nn, torch.nn.functional as F

class NewtonSchulz(nn.Module):
    def forward(s, a):
        y = a
        for _ in range(12):
            y = 1.5 * y - 0.5 * y @ y @ y
        return y
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 4); s.ns = NewtonSchulz(); s.head = nn.Linear(4, 2)
    def forward(s, x): z = s.enc(x); cov = z.t() @ z; return s.head(z @ s.ns(cov))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 6, generator=g) * s, torch.randint(0, 2, (5,), generator=g)) for s in (0.3, 0.3, 0.3, 4.0)]
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", also=["input_out_of_scale"], module="ns", phase="forward", op="aten.mm", first_bad_step=3, line="1.5 * y - 0.5 * y @ y @ y"))
