"""Half-precision cross-attention to a memory with a time-gap bias (-0.5 per second) added to a finfo.min padding mask.
True cause: -65504 + (-40) is -inf in fp16, for every key of the sample whose memory is empty; the same sum is finite in fp32 (and the row uniform)."""
import torch, torch.nn as nn

class MemoryAttention(nn.Module):
    def __init__(s, d): super().__init__(); s.q = nn.Linear(d, d); s.kv = nn.Linear(d, 2 * d); s.o = nn.Linear(d, d)
    def bias(s, gap, pad, dtype):
        m = torch.zeros(pad.shape, dtype=dtype).masked_fill(pad, torch.finfo(dtype).min)
        return m + (-0.5 * gap).to(dtype)
    def forward(s, x, mem, gap, pad):
        k, v = s.kv(mem).chunk(2, -1)
        w = s.q(x) @ k.transpose(1, 2) / x.shape[-1] ** 0.5 + s.bias(gap, pad, x.dtype)[:, None]
        return s.o(torch.softmax(w, -1) @ v)
class Block(nn.Module):
    def __init__(s, d): super().__init__(); s.ln = nn.LayerNorm(d); s.mem_attn = MemoryAttention(d)
    def forward(s, x, *a): return x + s.mem_attn(s.ln(x), *a)
class Reader(nn.Module):
    def __init__(s, d=16): super().__init__(); s.blocks = nn.ModuleList([Block(d), Block(d)]); s.head = nn.Linear(d, 4)
    def forward(s, x, *a):
        for b in s.blocks: x = b(x, *a)
        return s.head(x.mean(1))

def build():
    torch.manual_seed(0); model = Reader().half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        pad = torch.arange(6)[None] >= torch.randint(2, 7, (4, 1), generator=g)
        if i == 3: pad[2] = True                                           # a new user: nothing remembered yet
        batches.append((torch.randn(4, 3, 16, generator=g).half(), torch.randn(4, 6, 16, generator=g).half(), 80 + 100 * torch.rand(4, 6, generator=g), pad,
                        torch.randint(0, 4, (4,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b[:4]).float(), b[4])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="mask_overflow", also=["softmax_fully_masked_row"], module="blocks.0.mem_attn", phase="forward", op="aten.add", first_bad_step=3))
