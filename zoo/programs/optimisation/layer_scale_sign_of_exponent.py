"""Residual branches are scaled by a learned gamma that should start at 1e-5 and starts at 1e5: ten blocks make 1e40 and more of the very first batch.
True cause: bad initialisation of the gammas; divided by 1e10 they give a finite step."""
import torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s, d=10): super().__init__(); s.fc = nn.Linear(d, d); s.gamma = nn.Parameter(torch.full((d,), 1e5))
    def forward(s, x): return x + s.gamma * nn.functional.silu(s.fc(x))

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(7, 10), *[Block() for _ in range(10)], nn.LayerNorm(10), nn.Linear(10, 3))
    opt = torch.optim.NAdam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 7, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="9", phase="forward", op="aten.mul", first_bad_step=0))
