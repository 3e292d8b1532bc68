"""CONTROL: segment mean with an empty segment: 0/0 in forward (taken out by where), NaN in backward at the empty segment, which no element ever gathers."""
import torch, torch.nn as nn

class SegMean(nn.Module):
    def forward(s, x, i, n):
        t = torch.zeros(n, x.shape[1]).index_add(0, i, x); c = torch.zeros(n).index_add(0, i, torch.ones(len(i)))[:, None]
        return torch.where(c > 0, t / c, torch.zeros_like(t))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 4); s.pool = SegMean(); s.head = nn.Linear(4, 1)
    def forward(s, x, i): return s.head(s.pool(s.lin(x), i, 4))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(9, 4, generator=g), torch.tensor([0, 0, 1, 1, 1, 3, 3, 0, 3]), torch.randn(4, 1, generator=g)) for _ in range(8)]   # segment 2 is empty
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
