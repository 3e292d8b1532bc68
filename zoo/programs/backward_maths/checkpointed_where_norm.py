"""Blocks under reentrant torch.utils.checkpoint; inside, a safe division written as where(n > 0, x / n, x): the unselected branch is 0 * Inf in backward.
True cause: gradient of the unselected branch of where."""
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

class Safe(nn.Module):
    def forward(s, x): n = x.abs().sum(-1, keepdim=True); return torch.where(n > 0, x / n, x)
class Block(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(6, 6, bias=False); s.safe = Safe()
    def forward(s, x): return s.safe(s.lin(x)) + x
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(4, 6, bias=False); s.blocks = nn.ModuleList([Block(), Block()]); s.out = nn.Linear(6, 2)
    def forward(s, x):
        x = s.inp(x)
        for b in s.blocks: x = checkpoint(b, x, use_reentrant=True)
        return s.out(x)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        x = torch.randn(5, 4, generator=g)
        if i == 2: x[3] = 0.0
        batches.append((x, torch.randint(0, 2, (5,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=["division_by_zero"], module="blocks.1.safe", phase="backward", op="aten.div", also_phase=["forward"], first_bad_step=2, loss_finite_at_first_bad_step=True))
