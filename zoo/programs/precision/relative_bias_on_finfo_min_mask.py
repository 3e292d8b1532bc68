"""Decoder with left padding under fp16: the mask uses torch.finfo(dtype).min so that a fully padded row stays finite. Then the learned
relative-position bias is added; softmax ignores a common offset, so the pretrained table drifted to -20 and below, and -65504 - 20 is
-inf in fp16: whole rows become -inf and their softmax NaN.
True cause: the additive mask overflows half precision; in fp32 the same rows are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Attention(nn.Module):
    def __init__(s, d=16, n=12):
        super().__init__(); s.qkv = nn.Linear(d, 3 * d); s.out = nn.Linear(d, d); s.rel = nn.Embedding(n, 1)
    def forward(s, x, keep):
        q, k, v = s.qkv(x).chunk(3, -1); n = x.shape[1]; pos = torch.arange(n)
        mask = torch.zeros(x.shape[0], n, n, dtype=q.dtype).masked_fill(~(keep[:, None] & (pos[None, :] <= pos[:, None])), torch.finfo(q.dtype).min)
        bias = s.rel((pos[:, None] - pos[None, :]).abs()).squeeze(-1).to(q.dtype)
        w = q @ k.transpose(1, 2) * 0.25 + (mask + bias)
        return s.out(torch.softmax(w, -1).to(v.dtype) @ v)
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(25, 16); s.attn = Attention(); s.head = nn.Linear(16, 25)
    def forward(s, ids, keep): x = s.emb(ids); return s.head(x + s.attn(x, keep))

def build():
    torch.manual_seed(15); model = LM(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.attn.rel.weight.copy_(-20 - 0.5 * torch.arange(12.0)[:, None])       # the pretrained table
    g = torch.Generator().manual_seed(19); batches = []
    for i in range(6):
        ids = torch.randint(1, 25, (3, 12), generator=g); keep = torch.ones(3, 12, dtype=torch.bool)
        if i >= 2: keep[1, :4] = False; ids[1, :4] = 0                        # left padding begins with the second bucket
        batches.append((ids, keep))
    def loss_fn(m, b):
        y = b[0].masked_fill(~b[1], -100)[:, 1:]; return nn.functional.cross_entropy(m(*b)[:, :-1].float().transpose(1, 2), y)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="mask_overflow", module="attn", phase="forward", op="aten.add", first_bad_step=2))
