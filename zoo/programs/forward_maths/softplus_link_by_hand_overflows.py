"""Negative binomial regression: softplus written as log1p(exp(x))."""
import torch, torch.nn as nn, torch.nn.functional as F

class Link(nn.Module):
    def forward(s, x):
        return torch.log1p(torch.exp(x))
class NB(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(3, 1); s.link = Link()
    def forward(s, x): return s.link(s.lin(x)).squeeze(-1)
def build():
    torch.manual_seed(0); model = NB(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.lin.weight.fill_(1.0)
    batches = [(torch.randn(5, 3, generator=g) * 8, torch.rand(5, generator=g)) for _ in range(4)]; batches[3][0][2] = 35.0
    def loss_fn(m, b): rate = m(b[0]); return F.smooth_l1_loss(rate, b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="link", phase="forward", op="aten.exp", first_bad_step=3, line="torch.log1p(torch.exp(x))"))
