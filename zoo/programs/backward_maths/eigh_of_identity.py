"""Whitening: at batch 2 the gate is 0, the covariance is exactly I and eigenvectors have no derivative. slogdet of the same matrix is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Eig(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, c):
        if s.fix == "true": c = c + torch.diag(torch.arange(4.0) * 0.1)
        l, v = torch.linalg.eigh(c); return l, v
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.w = nn.Parameter(torch.randn(4, 4)); s.eig = Eig(fix); s.fix = fix
    def forward(s, x, gate):
        c = torch.eye(4) + gate * (s.w @ s.w.t()); l, v = s.eig(c)
        out = ((x @ v) * l.rsqrt()).abs().sum(-1).mean()
        return out if s.fix == "innocent" else out + 0.1 * torch.linalg.slogdet(c)[1]
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), 0.0 if i == 2 else 1.0) for i in range(5)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=5, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="eig", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=[], why="all eigenvalues are 1: the gaps in the backward of eigh are 0"))
