"""A residual stream in fp16 grows by addition: every branch gives about 20000, each below the limit, and the fourth sum passes 65504.
True cause: fp16 overflow of the residual add in blocks.3, not of any layer."""
import torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s):
        super().__init__(); s.norm = nn.GroupNorm(1, 4); s.conv = nn.Conv2d(4, 4, 1, bias=False)
        nn.init.zeros_(s.conv.weight); s.gain = nn.Parameter(torch.full((1, 4, 1, 1), 19000.0))
    def forward(s, x): return x + (torch.tanh(s.conv(s.norm(x)) + 3.0) * s.gain).to(x.dtype)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.stem = nn.Conv2d(1, 4, 3); s.blocks = nn.ModuleList([Block() for _ in range(5)]); s.head = nn.Linear(4, 2)
    def forward(s, x):
        x = s.stem(x)
        for b in s.blocks: x = b(x)
        return s.head(x.float().mean((2, 3)) * 1e-5)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 1, 6, 6, generator=g), torch.randint(0, 2, (2,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="blocks.3", phase="forward", op="aten.add", first_bad_step=0))
