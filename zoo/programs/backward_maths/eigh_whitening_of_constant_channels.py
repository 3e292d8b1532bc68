"""A whitening layer diagonalises the covariance of its batch. Batch 2 comes from a sensor with two constant channels: the covariance
has two equal eigenvalues (0), and eigh's derivative divides by their difference.
True cause: repeated eigenvalues in the backward of eigh (the forward adds an eps and is finite)."""
import torch, torch.nn as nn

class Whiten(nn.Module):
    def forward(s, x):
        x = x - x.mean(0); cov = x.T @ x / x.shape[0]
        val, vec = torch.linalg.eigh(cov)
        return x @ vec @ torch.diag((val.clamp_min(0) + 1e-3).rsqrt())
class Net(nn.Module):
    def __init__(s): super().__init__(); s.gain = nn.Parameter(torch.ones(4)); s.white = Whiten(); s.head = nn.Linear(4, 2)
    def forward(s, x): return s.head(s.white(x * s.gain))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(16, 4, generator=g), torch.randint(0, 2, (16,), generator=g)) for _ in range(4)]
    batches[2][0][:, 1] = 0.0; batches[2][0][:, 3] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="white", phase="backward", op="aten.div_", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
