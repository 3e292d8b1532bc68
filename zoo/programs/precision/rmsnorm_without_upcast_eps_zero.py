"""A small Llama-like model in fp16 whose RMSNorm does not upcast and adds eps=1e-8. Padding tokens have a zero embedding.
True cause: 1e-8 is 0 in fp16, so rsqrt(0) = inf and 0 * inf = NaN for padded tokens (first padded batch: 2); fp32 is finite."""
import torch, torch.nn as nn

class RMSNorm(nn.Module):
    def __init__(s, d, eps=1e-8): super().__init__(); s.weight = nn.Parameter(torch.ones(d)); s.eps = eps
    def forward(s, x): return s.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.eps))
class MLP(nn.Module):
    def __init__(s, d): super().__init__(); s.input_norm = RMSNorm(d); s.gate = nn.Linear(d, 2 * d, bias=False); s.up = nn.Linear(d, 2 * d, bias=False); s.down = nn.Linear(2 * d, d, bias=False)
    def forward(s, x): h = s.input_norm(x); return x + s.down(nn.functional.silu(s.gate(h)) * s.up(h))
class LM(nn.Module):
    def __init__(s, d=16): super().__init__(); s.tok = nn.Embedding(20, d, padding_idx=0); s.layers = nn.ModuleList([MLP(d), MLP(d)]); s.norm = RMSNorm(d); s.head = nn.Linear(d, 20, bias=False)
    def forward(s, i):
        x = s.tok(i)
        for l in s.layers: x = l(x)
        return s.head(s.norm(x))

def build():
    torch.manual_seed(0); model = LM().half(); opt = torch.optim.SGD(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        ids = torch.randint(1, 20, (3, 8), generator=g)
        if i == 2: ids[1, 5:] = 0
        batches.append(ids)
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b)[:, :-1].flatten(0, 1).float(), b[:, 1:].flatten(), ignore_index=0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="layers.0.input_norm", phase="forward", op="aten.rsqrt", first_bad_step=2))
