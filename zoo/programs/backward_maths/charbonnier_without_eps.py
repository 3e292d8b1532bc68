"""Restoration with a Charbonnier loss that forgot its eps: black pixels are predicted exactly."""
import torch, torch.nn as nn, torch.nn.functional as F

class Restore(nn.Module):
    def __init__(s): super().__init__(); s.c1 = nn.Conv2d(1, 4, 3, padding=1); s.c2 = nn.Conv2d(4, 1, 3, padding=1)
    def forward(s, x): return x + s.c2(F.relu(s.c1(x))) * (x > 0)
def build():
    torch.manual_seed(0); model = Restore(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(2, 1, 6, 6, generator=g) + 0.1, torch.rand(2, 1, 6, 6, generator=g) + 0.1) for _ in range(3)]
    batches[1][0][1, 0, 2:4] = 0; batches[1][1][1, 0, 2:4] = 0
    def charbonnier(a, b): return torch.sqrt((a - b) ** 2).mean()
    def loss_fn(m, b): return charbonnier(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", where="loss_fn", module="", phase="backward", op="aten.div", first_bad_step=1, line="torch.sqrt((a - b) ** 2)", loss_finite_at_first_bad_step=True))
