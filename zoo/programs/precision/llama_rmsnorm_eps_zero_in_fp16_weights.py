"""Llama-like block in fp16 weights: RMSNorm adds eps=1e-8 in fp16 where it is 0; a zero (padding) embedding row gives rsqrt(0)=Inf and 0*Inf."""
import torch, torch.nn as nn

class RMSNorm(nn.Module):
    def __init__(s, d, eps=1e-8): super().__init__(); s.weight = nn.Parameter(torch.ones(d)); s.eps = eps
    def forward(s, x): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.eps) * s.weight
class SwiGLU(nn.Module):
    def __init__(s, d): super().__init__(); s.g, s.u, s.d = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)
    def forward(s, x): return s.d(nn.functional.silu(s.g(x)) * s.u(x))
class Layer(nn.Module):
    def __init__(s, d): super().__init__(); s.input_layernorm = RMSNorm(d); s.mlp = SwiGLU(d)
    def forward(s, x): return x + s.mlp(s.input_layernorm(x))
class TinyLlama(nn.Module):
    def __init__(s, v=24, d=16):
        super().__init__(); s.embed_tokens = nn.Embedding(v, d, padding_idx=0); s.layers = nn.ModuleList(Layer(d) for _ in range(2))
        s.norm = RMSNorm(d); s.lm_head = nn.Linear(d, v, bias=False)
    def forward(s, ids):
        x = s.embed_tokens(ids)
        for l in s.layers: x = l(x)
        return s.lm_head(s.norm(x))

def build():
    torch.manual_seed(0); model = TinyLlama().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(2); batches = []
    for i in range(6):
        ids = torch.randint(1, 24, (3, 8), generator=g)
        if i == 3: ids[1, 6:] = 0                                # the first batch with padding
        batches.append(ids)
    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids)[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="layers.0.input_layernorm", phase="forward", op="aten.rsqrt", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, also=["division_by_zero"],
                           why="eps=1e-8 is 0 in fp16, so the zero row of the padding token gives rsqrt(0)."))
