"""CONTROL: sensors with NaN are filled, with a mask as a second channel."""
import torch, torch.nn as nn, torch.nn.functional as F

class S(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(8, 1)
    def forward(s, x): return s.lin(torch.cat([torch.nan_to_num(x), x.isnan().float()], -1))
def build():
    torch.manual_seed(0); model = S(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), torch.randn(5, 1, generator=g)) for _ in range(3)]
    for b in batches: b[0][0] = float("nan")
    def loss_fn(m, b): return F.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
