"""Decoder with HF-style additive mask finfo(fp16).min plus ALiBi-like negative bias, added in fp16: min + (-200) is -Inf. Batch 3 brings the first padding, with one empty
document, so one row is -Inf everywhere and softmax is NaN. In fp32 finfo.min + bias stays finite and the same row is uniform: not a fully masked row."""
import torch, torch.nn as nn
class Attention(nn.Module):
    def __init__(s, d=16, n=6):
        super().__init__(); s.q, s.k, s.v = (nn.Linear(d, d) for _ in range(3)); s.register_buffer("bias", -200.0 - 10 * (torch.arange(n)[:, None] - torch.arange(n)).abs().float())
    def forward(s, x, keep):
        w = s.q(x) @ s.k(x).transpose(1, 2) / 4 + s.bias.to(x.dtype)
        add = torch.zeros(keep.shape, dtype=x.dtype).masked_fill(~keep, torch.finfo(x.dtype).min)[:, None, :]
        return (w + add).softmax(-1) @ s.v(x)
class Dec(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 16); s.attn = Attention(); s.ln = nn.LayerNorm(16); s.head = nn.Linear(16, 20)
    def forward(s, ids, keep): x = s.emb(ids); return s.head(s.ln(x + s.attn(x, keep)))
def build():
    torch.manual_seed(0); model = Dec().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); bs = []
    for i in range(5):
        keep = torch.ones(3, 6, dtype=torch.bool)
        if i == 3: keep[1] = False
        bs.append((torch.randint(0, 20, (3, 6), generator=g), keep))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b).float().flatten(0, 1), b[0].flatten())
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="mask_overflow", module="attn", phase="forward", op="aten.add", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           also=["softmax_fully_masked_row"], why="finfo.min plus a bias of -200 overflows to -Inf in fp16; in fp32 the row stays finite."))
