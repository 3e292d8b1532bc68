"""ALiBi attention in float16: padding is masked with finfo(float16).min, then the distance bias is added. -65504 - 48 does not fit and becomes -Inf;
for a left-padded query every key is padding or in the future, so its row is -Inf everywhere.
True cause: finfo.min plus something in half precision."""
import torch, torch.nn as nn

class Alibi(nn.Module):
    def __init__(s, d=16): super().__init__(); s.qkv = nn.Linear(d, 3 * d); s.out = nn.Linear(d, d)
    def forward(s, x, keep):
        t = x.shape[1]; q, k, v = s.qkv(x).chunk(3, -1); low = torch.finfo(x.dtype).min
        pos = torch.arange(t); bias = -24.0 * (1.0 + (pos[:, None] - pos[None, :]).abs()).to(x.dtype)
        ok = keep[:, None, :] & (pos[None, :] <= pos[:, None])[None]
        mask = torch.zeros(ok.shape, dtype=x.dtype).masked_fill(~ok, low)
        mask = mask + bias
        return s.out(torch.softmax(q @ k.transpose(1, 2) + mask, -1) @ v)
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 16); s.attn = Alibi(); s.head = nn.Linear(16, 20)
    def forward(s, x, keep): return s.head(s.attn(s.emb(x), keep))

def build():
    torch.manual_seed(0); model = LM().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        x = torch.randint(0, 20, (2, 6), generator=g); keep = torch.ones(2, 6, dtype=torch.bool)
        if i == 2: keep[0, :3] = False
        batches.append((x, keep))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b).float().flatten(0, 1), b[0].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="mask_overflow", also=["softmax_fully_masked_row"], module="attn", phase="forward", op="aten.add", also_op=["aten._softmax"], first_bad_step=2))
