"""Half precision attention: a mask of finfo.min plus a negative position bias."""
import torch, torch.nn as nn, torch.nn.functional as F

class Attn(nn.Module):
    def __init__(s, d=8): super().__init__(); s.q = nn.Linear(d, d); s.k = nn.Linear(d, d); s.v = nn.Linear(d, d)
    def forward(s, x, keep):
        scores = s.q(x) @ s.k(x).transpose(1, 2)
        t = x.shape[1]; bias = -64.0 * (1 + (torch.arange(t)[None] - torch.arange(t)[:, None]).abs()).to(scores.dtype)
        mask = torch.zeros(keep.shape, dtype=scores.dtype).masked_fill(~keep, torch.finfo(scores.dtype).min)[:, None]
        scores = scores + (mask + bias)
        return torch.softmax(scores, -1) @ s.v(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.attn = Attn(); s.head = nn.Linear(8, 2)
    def forward(s, x, keep): return s.head(s.attn(x, keep).mean(1))
def build():
    torch.manual_seed(0); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 5, 8, generator=g).half(), torch.ones(3, 5, dtype=torch.bool), torch.randint(0, 2, (3,), generator=g)) for _ in range(3)]; batches[1][1][2] = False
    def loss_fn(m, b): return F.cross_entropy(m(b[0], b[1]).float(), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="mask_overflow", module="attn", phase="forward", op="aten.add", first_bad_step=1, line="mask + bias"))
