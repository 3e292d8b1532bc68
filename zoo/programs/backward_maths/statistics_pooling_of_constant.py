"""Speaker embedding: the root of the variance of a channel that is constant over time."""
import torch, torch.nn as nn, torch.nn.functional as F

class StatPool(nn.Module):
    def forward(s, h):
        mean = h.mean(-1)
        std = h.var(-1, unbiased=False).sqrt()
        return torch.cat([mean, std], -1)
class XVector(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv1d(4, 6, 3); s.pool = StatPool(); s.head = nn.Linear(12, 3)
    def forward(s, x): return s.head(s.pool(F.relu(s.conv(x))))
def build():
    torch.manual_seed(0); model = XVector(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.conv.bias.fill_(0.4)
    batches = [(torch.randn(3, 4, 12, generator=g), torch.randint(0, 3, (3,), generator=g)) for _ in range(3)]; batches[1][0][2] = 0.0
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="pool", phase="backward", op="aten.div", first_bad_step=1, line="h.var(-1, unbiased=False).sqrt()", loss_finite_at_first_bad_step=True))
