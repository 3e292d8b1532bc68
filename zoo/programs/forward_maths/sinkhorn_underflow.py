"""Point matching with Sinkhorn iterations on K = exp(-cost / 0.01): for a far point the whole row of K underflows to 0 and a / (K v) is Inf.
True cause: division by a row sum of exactly zero."""
import torch, torch.nn as nn

class Matcher(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(2, 4);
    def forward(s, x, y):
        cost = ((s.f(x)[:, None] - s.f(y)[None]) ** 2).sum(-1); k = torch.exp(-cost / 0.01)
        a = torch.full((len(x),), 1.0 / len(x)); b = torch.full((len(y),), 1.0 / len(y)); v = torch.ones_like(b)
        for _ in range(3): u = a / (k @ v); v = b / (k.t() @ u)
        return (u[:, None] * k * v[None] * cost).sum()

def build():
    torch.manual_seed(0); model = Matcher(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = 0.02 * torch.randn(5, 2, generator=g); y = 0.02 * torch.randn(5, 2, generator=g)
        if i == 3: x[1] = 50.0
        batches.append((x, y))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=3))
