"""A point-cloud layer takes sqrt of the sum of squared differences between all pairs, so the diagonal is exactly 0. The forward is
finite everywhere; the slope of sqrt at 0 is not.
True cause: singular gradient at zero (torch.cdist and norm would give 0 there)."""
import torch, torch.nn as nn

class Distance(nn.Module):
    def forward(s, x): return (x[:, :, None] - x[:, None]).pow(2).sum(-1).sqrt()
class EGNN(nn.Module):
    def __init__(s): super().__init__(); s.lift = nn.Linear(3, 5); s.dist = Distance(); s.edge = nn.Linear(1, 4); s.head = nn.Linear(4, 1)
    def forward(s, x): return s.head(torch.tanh(s.edge(s.dist(s.lift(x))[..., None])).mean((1, 2)))

def build():
    torch.manual_seed(0); model = EGNN(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 6, 3, generator=g), torch.randn(2, 1, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="dist", phase="backward", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
