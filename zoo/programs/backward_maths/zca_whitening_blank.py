"""Decorrelated (ZCA) batch whitening with eigh. A blank batch gives a covariance of exactly eps * I: all eigenvalues equal.
True cause: eigh backward divides by the gaps of the spectrum, which are exactly 0. Forward and loss are finite; eps keeps 1/sqrt(lambda) harmless."""
import torch, torch.nn as nn

class Whiten(nn.Module):
    def __init__(s, d, eps=1e-2): super().__init__(); s.d, s.eps = d, eps
    def forward(s, x):
        xc = x - x.mean(0)
        cov = xc.T @ xc / len(x) + s.eps * torch.eye(s.d)
        lam, v = torch.linalg.eigh(cov)
        return xc @ (v * lam.rsqrt()) @ v.T
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()); s.head = nn.Sequential(Whiten(4), nn.Linear(4, 3))
    def forward(s, x): return s.head(s.stem(x))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 1, 6, 6, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(6)]
    batches[3][0].zero_()                                                # lens cap on
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="head.0", phase="backward", op="aten._linalg_eigh", also_op=["aten.div", "aten.linalg_eigh"], first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
