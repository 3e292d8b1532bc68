"""Exact GP regression without jitter: one minibatch has the same input twice, the kernel matrix is singular. cholesky_ex does not raise, and the log of a zero pivot is -Inf.
True cause: log of the exact zero on the Cholesky factor's diagonal (a singular kernel matrix)."""
import math, torch, torch.nn as nn

class Gp(nn.Module):
    def __init__(s): super().__init__(); s.log_len = nn.Parameter(torch.zeros(())); s.mean = nn.Parameter(torch.zeros(()))
    def kernel(s, x): return torch.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1) / torch.exp(2 * s.log_len))
    def forward(s, x, y):
        factor = torch.linalg.cholesky_ex(s.kernel(x)).L
        logdet = 2 * torch.log(factor.diagonal()).sum()
        a = torch.linalg.solve_triangular(factor, (y - s.mean)[:, None], upper=False)
        return 0.5 * (a.pow(2).sum() + logdet + len(y) * math.log(2 * math.pi))

def build():
    torch.manual_seed(0); model = Gp(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = []
    for i in range(5):
        x = torch.tensor([[0.0], [4.0], [8.0], [12.0], [16.0], [20.0]])
        if i == 3: x[1] = x[0]
        batches.append((x, torch.sin(x[:, 0])))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=["degenerate_linalg_backward"], module="loss", phase="forward", op="aten.log", first_bad_step=3))
