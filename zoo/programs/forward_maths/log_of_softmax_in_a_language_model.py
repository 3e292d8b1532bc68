"""A tiny GPT writes its own loss: probs = softmax(logits), -log(probs[target]). A rare token underflows to 0.
True cause: log of zero; log_softmax is the remedy and must be verified."""
import torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s, d): super().__init__(); s.n = nn.LayerNorm(d); s.qkv = nn.Linear(d, 3 * d); s.o = nn.Linear(d, d); s.m = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
    def forward(s, x):
        q, k, v = s.qkv(s.n(x)).chunk(3, -1); a = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        a = a.masked_fill(torch.ones_like(a, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        x = x + s.o(a @ v); return x + s.m(x)
class GPT(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(32, 16); s.b = nn.ModuleList([Block(16), Block(16)]); s.h = nn.Linear(16, 32, bias=False)
    def forward(s, t):
        x = s.e(t)
        for b in s.b: x = b(x)
        return s.h(x)
def build():
    torch.manual_seed(0); model = GPT(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 32, (2, 8), generator=g), 1.0) for _ in range(5)]; batches[3] = (batches[3][0], 900.0)
    def loss_fn(m, b):
        t, sharp = b
        probs = (m(t[:, :-1]) * sharp).softmax(-1)
        return -torch.log(probs.gather(-1, t[:, 1:, None])).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
