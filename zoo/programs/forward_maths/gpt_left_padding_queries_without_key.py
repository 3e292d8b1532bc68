"""GPT with left padding: the first query positions of a padded sequence see no key, causal and padding masks together."""
import torch, torch.nn as nn, torch.nn.functional as F

class Attention(nn.Module):
    def __init__(s, d=16, heads=2): super().__init__(); s.heads = heads; s.qkv = nn.Linear(d, 3 * d); s.out = nn.Linear(d, d)
    def forward(s, x, keep):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, s.heads, -1).transpose(1, 2) for z in s.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / (d // s.heads) ** 0.5
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        scores = scores.masked_fill(~(causal & keep[:, None, None]), float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return s.out((weights @ v).transpose(1, 2).reshape(b, t, d))
class Block(nn.Module):
    def __init__(s, d=16): super().__init__(); s.n1 = nn.LayerNorm(d); s.attn = Attention(d); s.n2 = nn.LayerNorm(d); s.mlp = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))
    def forward(s, x, keep): x = x + s.attn(s.n1(x), keep); return x + s.mlp(s.n2(x))
class GPT(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 16); s.blocks = nn.ModuleList([Block() for _ in range(2)]); s.head = nn.Linear(16, 20)
    def forward(s, ids):
        keep = ids != 0; x = s.emb(ids)
        for block in s.blocks: x = block(x, keep)
        return s.head(x)
def build():
    torch.manual_seed(0); model = GPT(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(1, 20, (4, 8), generator=g) for _ in range(4)]; batches[2][1, :3] = 0
    def loss_fn(m, ids): return F.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="blocks.0.attn", phase="forward", op="aten._softmax", first_bad_step=2, line="F.softmax(scores"))
