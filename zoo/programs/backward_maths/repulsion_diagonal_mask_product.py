"""A repulsion term on prototype vectors: sqrt of the pairwise squared distances times (1 - eye) "to ignore the diagonal".
The term is switched on after a warm-up. Backward on the diagonal is 0 / 0. True cause: mask product does not stop 0 * Inf."""
import torch, torch.nn as nn

class Protos(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(10, 6); s.p = nn.Parameter(torch.randn(5, 6))
    def forward(s, x): return -(s.enc(x)[:, None] - s.p[None]).square().sum(-1)

def repulsion(p):
    d = torch.sqrt((p[:, None] - p[None]).square().sum(-1)); off = 1.0 - torch.eye(len(p))
    return (torch.exp(-d) * off).sum() / off.sum()

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Protos(); opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(1); batches = [dict(x=torch.randn(12, 10, generator=g), y=torch.randint(0, 5, (12,), generator=g), epoch=i // 3) for i in range(9)]
    def loss_fn(m, b):
        loss = nn.functional.cross_entropy(m(b["x"]), b["y"])
        return loss + 0.1 * repulsion(m.p) if b["epoch"] >= 2 else loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="loss", phase="backward", op="aten.div", first_bad_step=6, loss_finite_at_first_bad_step=True))
