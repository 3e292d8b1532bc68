"""A Gumbel softmax whose temperature falls with a counter of the module and reaches zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class Gumbel(nn.Module):
    def __init__(s): super().__init__(); s.calls = 0
    def forward(s, logits):
        tau = max(0.0, 1.0 - 0.25 * s.calls); s.calls += 1
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)))
        return torch.softmax((logits + noise) / tau, -1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 4); s.gumbel = Gumbel(); s.dec = nn.Linear(4, 5)
    def forward(s, x): return s.dec(s.gumbel(s.enc(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 5, generator=g) for _ in range(6)]
    def loss_fn(m, x): return F.mse_loss(m(x), x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="gumbel", phase="forward", op="aten.div", first_bad_step=4, line="(logits + noise) / tau"))
