"""A Llama-like block in float16: x * rsqrt(mean(x^2) + 1e-8) where the eps is 0, and a padded position is all zeros.
True cause: the epsilon has no effect in float16."""
import torch, torch.nn as nn

class RMS(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Parameter(torch.ones(d))
    def forward(s, x): return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-8) * s.w
class Llama(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(16, 8, padding_idx=0); s.n1 = RMS(8); s.g = nn.Linear(8, 16, bias=False); s.u = nn.Linear(8, 16, bias=False); s.d = nn.Linear(16, 8, bias=False); s.h = nn.Linear(8, 16)
    def forward(s, t):
        x = s.e(t); y = s.n1(x); x = x + s.d(nn.functional.silu(s.g(y)) * s.u(y)); return s.h(x)
def build():
    torch.manual_seed(0); model = Llama().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(1, 16, (2, 6), generator=g) for _ in range(5)]; batches[3][1, 4:] = 0
    def loss_fn(m, t): return nn.functional.cross_entropy(m(t).float().flatten(0, 1), t.flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="n1", phase="forward", op="aten.rsqrt", first_bad_step=3))
