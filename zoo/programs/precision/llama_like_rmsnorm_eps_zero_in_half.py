"""A small Llama-like model in pure float16 with its own RMSNorm(eps=1e-8): the padding row of the embedding is zero, 1e-8 is 0 in float16, 0 * rsqrt(0) is NaN.
True cause: eps rounds to zero in float16."""
import torch, torch.nn as nn

class RMSNorm(nn.Module):
    def __init__(s, d, eps=1e-8): super().__init__(); s.w = nn.Parameter(torch.ones(d)); s.eps = eps
    def forward(s, x): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.eps) * s.w
class Block(nn.Module):
    def __init__(s, d): super().__init__(); s.norm = RMSNorm(d); s.up = nn.Linear(d, 2 * d); s.down = nn.Linear(2 * d, d)
    def forward(s, x): return x + s.down(torch.nn.functional.silu(s.up(s.norm(x))))
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(30, 16, padding_idx=0); s.blocks = nn.ModuleList([Block(16), Block(16)]); s.head = nn.Linear(16, 30)
    def forward(s, x):
        h = s.emb(x)
        for b in s.blocks: h = b(h)
        return s.head(h)

def build():
    torch.manual_seed(0); model = LM().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randint(1, 30, (2, 8), generator=g)
        if i == 2: x[1, 5:] = 0
        batches.append(x)
    def loss_fn(m, x): return nn.functional.cross_entropy(m(x)[:, :-1].float().flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="blocks.0.norm", phase="forward", op="aten.rsqrt", first_bad_step=2))
