"""Speaker embedding with statistics pooling: mean and unbiased variance over time, by torch.var_mean. After trimming, one utterance is a single frame long.
True cause: the variance of one element (batch 3 has length 1, the others 5 and more)."""
import torch, torch.nn as nn

class StatsPool(nn.Module):
    def forward(s, x): var, mean = torch.var_mean(x, dim=1); return torch.cat([mean, (var + 1e-5).sqrt()], -1)
class XVector(nn.Module):
    def __init__(s): super().__init__(); s.frame = nn.Linear(6, 10); s.pool = StatsPool(); s.head = nn.Linear(20, 4)
    def forward(s, x): return s.head(s.pool(nn.functional.celu(s.frame(x))))

def build():
    torch.manual_seed(0); model = XVector(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, n, 6, generator=g), torch.randint(0, 4, (2,), generator=g)) for n in (7, 5, 9, 1, 6)]
    def loss_fn(m, b): return nn.functional.multi_margin_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="pool", phase="forward", op="aten.var_mean", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
