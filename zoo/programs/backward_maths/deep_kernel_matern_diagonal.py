"""Deep-kernel Gaussian process, Matern-1/2 kernel, exact marginal likelihood with Cholesky: the distance is sqrt of a squared distance.
True cause: sqrt'(0) on the diagonal of the kernel matrix (distance of a point to itself); Cholesky and log-determinant are healthy."""
import torch, torch.nn as nn

class Matern12(nn.Module):
    def __init__(s): super().__init__(); s.log_len = nn.Parameter(torch.zeros(())); s.log_amp = nn.Parameter(torch.zeros(()))
    def forward(s, a, b):
        d = torch.sqrt((a[:, None] - b[None]).pow(2).sum(-1))
        r = d * torch.exp(-s.log_len)
        return s.log_amp.exp() * torch.exp(-r)
class DKL(nn.Module):
    def __init__(s): super().__init__(); s.feat = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)); s.kernel = Matern12(); s.log_noise = nn.Parameter(torch.tensor(-1.0))
    def forward(s, x, y):
        z = s.feat(x); k = s.kernel(z, z) + s.log_noise.exp() * torch.eye(len(x))
        L = torch.linalg.cholesky(k); a = torch.cholesky_solve(y, L)
        return (0.5 * (y * a).sum() + L.diagonal().log().sum()) / len(x)

def build():
    torch.manual_seed(0); model = DKL(); g = torch.Generator().manual_seed(1)
    for p in model.feat.parameters(): p.requires_grad_(False)            # first the kernel's own parameters ...
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = [(torch.randn(12, 2, generator=g), torch.randn(12, 1, generator=g), i) for i in range(6)]
    def loss_fn(m, b):
        if b[2] == 3: m.feat.requires_grad_(True)                         # ... then the features too
        return m(b[0], b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="kernel", phase="backward", op="aten.sqrt", also_op=["aten.div"], first_bad_step=3, loss_finite_at_first_bad_step=True))
