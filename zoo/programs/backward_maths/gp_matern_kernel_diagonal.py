"""Gaussian process with a Matern kernel by hand: the root of squared distances, zero on the diagonal."""
import torch, torch.nn as nn, torch.nn.functional as F

class Matern(nn.Module):
    def __init__(s): super().__init__(); s.log_scale = nn.Parameter(torch.zeros(3))
    def forward(s, x):
        z = x / s.log_scale.exp()
        d2 = (z[:, None] - z[None]).pow(2).sum(-1)
        r = 3 ** 0.5 * d2.sqrt()
        return (1 + r) * torch.exp(-r)
class GP(nn.Module):
    def __init__(s): super().__init__(); s.kernel = Matern(); s.log_noise = nn.Parameter(torch.tensor(-1.0))
    def forward(s, x): return s.kernel(x) + s.log_noise.exp() * torch.eye(len(x))
def build():
    torch.manual_seed(0); model = GP(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(7, 3, generator=g), torch.randn(7, generator=g)) for _ in range(2)]
    def loss_fn(m, b):
        factor = torch.linalg.cholesky(m(b[0])); alpha = torch.cholesky_solve(b[1][:, None], factor).squeeze(-1)
        return 0.5 * b[1] @ alpha + factor.diagonal().log().sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="kernel", phase="backward", op="aten.div", first_bad_step=0, line="d2.sqrt()", loss_finite_at_first_bad_step=True))
