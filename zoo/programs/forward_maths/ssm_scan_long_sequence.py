"""A diagonal state-space layer scanned in a Python loop inside one module, under gradient checkpointing; the transition is not squashed below 1.
True cause: h = a*h + b*x with a = 1.6 grows geometrically over the positions of one forward: harmless for 12 positions, overflow for 400 (batch 3)."""
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

class Scan(nn.Module):
    def __init__(s, d): super().__init__(); s.a = nn.Parameter(torch.full((d,), 1.6)); s.b = nn.Parameter(0.1 * torch.ones(d))
    def forward(s, x):
        h = torch.zeros_like(x[:, 0]); ys = []
        for t in range(x.shape[1]):
            h = s.a * h + s.b * x[:, t]
            ys.append(torch.tanh(h))                                     # the output is squashed, the state is not
        return torch.stack(ys, 1), h
class SSMBlock(nn.Module):
    def __init__(s, d): super().__init__(); s.norm = nn.LayerNorm(d); s.scan = Scan(d); s.mix = nn.Linear(d, d)
    def forward(s, x):
        y, h = s.scan(s.norm(x)); return x + s.mix(y + 1e-3 * h[:, None])
class Net(nn.Module):
    def __init__(s, d=8): super().__init__(); s.emb = nn.Linear(3, d); s.blocks = nn.ModuleList([SSMBlock(d)]); s.head = nn.Linear(d, 1)
    def forward(s, x):
        x = s.emb(x)
        for b in s.blocks: x = checkpoint(b, x, use_reentrant=False)
        return s.head(x[:, -1])

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 400 if i == 3 else 12, 3, generator=g), torch.randn(2, 1, generator=g)) for i in range(6)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="blocks.0.scan", phase="forward", op="aten.mul", first_bad_step=3))
