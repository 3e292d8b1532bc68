"""A T5-like gated feed-forward under float16 autocast: the product of gate and value passes 65504 for one sequence.
True cause: float16 overflow in the forward pass."""
import torch, torch.nn as nn

class FF(nn.Module):
    def __init__(s, d): super().__init__(); s.wi = nn.Linear(d, 4 * d, bias=False); s.wg = nn.Linear(d, 4 * d, bias=False); s.wo = nn.Linear(4 * d, d, bias=False)
    def forward(s, x): return s.wo(nn.functional.gelu(s.wg(x)) * s.wi(x))
class T5(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(24, 16); s.ff = FF(16); s.n = nn.LayerNorm(16); s.h = nn.Linear(16, 24)
    def forward(s, t): x = s.e(t); return s.h(s.n(x + s.ff(x)))
def build():
    torch.manual_seed(0); model = T5(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.e.weight[5] *= 600
    batches = [torch.randint(6, 24, (2, 6), generator=g) for _ in range(5)]; batches[3][1, 2] = 5
    def loss_fn(m, t): return nn.functional.cross_entropy(m(t).float().flatten(0, 1), t.flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="ff", phase="forward", op="aten.mul", first_bad_step=3))
