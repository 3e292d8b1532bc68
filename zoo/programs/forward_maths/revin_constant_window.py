"""Time-series forecasting with reversible instance normalisation and no epsilon: a sensor that stood still has std 0.
True cause: division by the standard deviation (exactly 0) of a constant window: 0/0."""
import torch, torch.nn as nn

class RevIN(nn.Module):
    def forward(s, x):
        s.mu, s.sd = x.mean(1, keepdim=True), x.std(1, keepdim=True); return (x - s.mu) / s.sd
    def inverse(s, y): return y * s.sd[:, :1] + s.mu[:, :1]
class DLinear(nn.Module):
    def __init__(s): super().__init__(); s.revin = RevIN(); s.lin = nn.Linear(24, 6)
    def forward(s, x): z = s.revin(x); return s.revin.inverse(s.lin(z.transpose(1, 2)).transpose(1, 2))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = DLinear(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 24, 3, generator=g).cumsum(1), torch.randn(6, 6, 3, generator=g)) for _ in range(8)]
    batches[5][0][2, :, 1] = 4.0                                     # stuck sensor
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="revin", phase="forward", op="aten.div", first_bad_step=5))
