"""CONTROL: a persistent causal-mask buffer full of -inf, fp16 autocast, left padding (never a whole row), log of a constant with zeros behind torch.where."""
import torch, torch.nn as nn

class Attn(nn.Module):
    def __init__(s, d, T): super().__init__(); s.qkv = nn.Linear(d, 3 * d); s.register_buffer("mask", torch.full((T, T), float("-inf")).triu(1))
    def forward(s, x): q, k, v = s.qkv(x).chunk(3, -1); return torch.softmax(q @ k.transpose(1, 2) / 4 + s.mask, -1) @ v
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(15, 16); s.attn = Attn(16, 8); s.out = nn.Linear(16, 15)
    def forward(s, ids): return s.out(s.attn(s.emb(ids)))
def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=2e-2)
    g = torch.Generator().manual_seed(1); batches = [(torch.randint(0, 15, (3, 8), generator=g), torch.randint(0, 4, (3, 8), generator=g).float()) for _ in range(10)]
    def loss_fn(m, b):
        w = torch.where(b[1] > 0, torch.log(b[1]), torch.zeros(()))       # -inf in the branch not taken; no gradient flows there
        return (nn.functional.cross_entropy(m(b[0]).float().flatten(0, 1), b[0].flatten(), reduction="none") * (1 + w.flatten())).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
