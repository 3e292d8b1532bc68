"""Primer-style squared ReLU in a fp16-autocast MLP mixer: relu(x)^2 with x ~ 400 is 160000 > 65504. Checkpointed blocks.
True cause: fp16 overflow of the square in block 1; fp32 finite."""
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

class SqReLU(nn.Module):
    def forward(s, x): return torch.relu(x).square()
class Block(nn.Module):
    def __init__(s, d): super().__init__(); s.norm = nn.LayerNorm(d); s.up = nn.Linear(d, 2 * d); s.act = SqReLU(); s.down = nn.Linear(2 * d, d)
    def forward(s, x): return x + s.down(s.act(s.up(s.norm(x))))
class Mixer(nn.Module):
    def __init__(s): super().__init__(); s.blocks = nn.ModuleList(Block(16) for _ in range(3)); s.head = nn.Linear(16, 1)
    def forward(s, x):
        for b in s.blocks: x = checkpoint(b, x, use_reentrant=False)
        return s.head(x)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Mixer(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.blocks[1].up.weight.mul_(220); model.blocks[1].down.weight.mul_(1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 16, generator=g), torch.randn(8, 1, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="blocks.1.act", phase="forward", op="aten.pow", first_bad_step=0))
