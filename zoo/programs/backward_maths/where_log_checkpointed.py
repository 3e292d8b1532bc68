"""torch.where(r > 0, log r, 0) inside a block under activation checkpointing: the -Inf of the unselected branch is dropped in the
forward, but its backward is 0 / 0.
True cause: where keeps the value of a branch out of the result, not its derivative out of the gradient."""
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

class SafeLog(nn.Module):
    def forward(s, x): r = x * (x > 0); return torch.where(r > 0, torch.log(r), torch.zeros_like(r))
class Block(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(8, 8); s.log = SafeLog()
    def forward(s, x): return x + s.log(s.lin(x))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.stem = nn.Linear(4, 8); s.block = Block(); s.head = nn.Linear(8, 1)
    def forward(s, x): return s.head(checkpoint(s.block, s.stem(x), use_reentrant=False))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, 1, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="block.log", phase="backward", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
