"""fp16 autocast, attention without 1/sqrt(d) and without q/k norm: one long-context batch has |q.k| > 65504 in the second layer.
True cause: QK^T overflows fp16; fp32 is finite (the softmax saturates, no more)."""
import torch, torch.nn as nn

class Attn(nn.Module):
    def __init__(s, d): super().__init__(); s.q = nn.Linear(d, d, bias=False); s.k = nn.Linear(d, d, bias=False); s.v = nn.Linear(d, d)
    def forward(s, x):
        w = torch.matmul(s.q(x), s.k(x).transpose(-1, -2));
        return torch.softmax(w, -1) @ s.v(x)
class Layer(nn.Module):
    def __init__(s, d): super().__init__(); s.attn = Attn(d); s.ff = nn.Linear(d, d)
    def forward(s, x): x = x + s.attn(x); return x + torch.relu(s.ff(x))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.tok = nn.Embedding(30, 32); s.layers = nn.ModuleList(Layer(32) for _ in range(2)); s.head = nn.Linear(32, 30)
    def forward(s, ids):
        x = s.tok(ids)
        for l in s.layers: x = l(x)
        return s.head(x)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with torch.no_grad():
        for n in ("q", "k"): getattr(model.layers[1].attn, n).weight.mul_(40)
        model.tok.weight[17].mul_(12)                               # a rare token with a large embedding
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        ids = torch.randint(0, 17, (2, 8), generator=g)
        if i == 3: ids[1, 4] = 17
        batches.append(ids)
    def loss_fn(m, ids): return nn.functional.cross_entropy(m(ids)[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="layers.1.attn", phase="forward", op="aten.bmm", first_bad_step=3))
