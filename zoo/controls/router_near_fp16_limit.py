"""CONTROL: mixture of experts under fp16 autocast. The router keeps the two best logits and sets the others to -inf, one expert gets no token at all
(products with an empty tensor), and one pretrained channel reaches some 50000, close to fp16's 65504 but below. All is finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Router(nn.Module):
    def __init__(s, d, e): super().__init__(); s.gate = nn.Linear(d, e)
    def forward(s, x):
        z = s.gate(x).float(); kth = z.topk(2, -1).values[..., -1:]; return torch.softmax(z.masked_fill(z < kth, float("-inf")), -1)
class MoE(nn.Module):
    def __init__(s, d=12, e=4): super().__init__(); s.router = Router(d, e); s.experts = nn.ModuleList([nn.Linear(d, d) for _ in range(e)])
    def forward(s, x):
        w = s.router(x); y = torch.zeros_like(x)
        for i, ex in enumerate(s.experts):
            idx = w[:, i].nonzero().squeeze(1); y = y.index_add(0, idx, (ex(x[idx]) * w[idx, i, None]).to(y.dtype))
        return x + y
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(5, 12); s.hot = nn.Linear(12, 12); s.norm = nn.LayerNorm(12); s.moe = MoE(); s.out = nn.Linear(12, 3)
    def forward(s, x): return s.out(s.moe(s.norm(s.hot(s.inp(x)).float())))

def build():
    torch.manual_seed(48); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=5e-4); g = torch.Generator().manual_seed(49)
    with torch.no_grad(): model.hot.bias[3] = 50000.0; model.moe.router.gate.bias[2] = -60.0
    batches = [(torch.randn(16, 5, generator=g), torch.randint(0, 3, (16,), generator=g)) for _ in range(10)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
