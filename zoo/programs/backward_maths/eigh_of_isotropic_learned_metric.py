"""Whitening by eigh of a learned metric: batch 3 has exactly isotropic covariance (identity), so all eigenvalues are equal and the
eigenvector gradient divides by zero gaps."""
import torch, torch.nn as nn
class Spectral(nn.Module):
    def forward(s, c):
        lam, v = torch.linalg.eigh(c); return lam, v
class Whiten(nn.Module):
    def __init__(s): super().__init__(); s.log_amp = nn.Parameter(torch.zeros(())); s.spec = Spectral(); s.read = nn.Linear(16, 1)
    def forward(s, cov):
        lam, v = s.spec(cov * s.log_amp.exp()); return s.read((v * lam.rsqrt()[:, None, :]).flatten(1))
def build():
    torch.manual_seed(0); model = Whiten(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(8); bs = []
    for i in range(5):
        a = torch.randn(3, 4, 4, generator=g); q = torch.linalg.qr(a).Q; c = q @ torch.diag_embed(torch.tensor([1., 2., 4., 8.]).expand(3, 4)) @ q.mT; c = (c + c.mT) / 2
        if i == 3: c[0] = torch.eye(4)
        bs.append((c, torch.randn(3, 1, generator=g)))
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="spec", phase="backward", op="aten.div_", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, why="Repeated eigenvalues: the backward of eigh divides by gaps of exactly 0."))
