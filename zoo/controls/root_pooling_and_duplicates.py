"""CONTROL: retrieval network with root pooling, sqrt(relu(mean)), and a triplet loss on cdist with duplicates in the batch.
Dead channels give an infinite slope in the backward of the root, but the ReLU in front of it erases it; cdist defines its slope at 0
as 0. All gradients that reach a weight are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class RootPool(nn.Module):
    def forward(s, x): return torch.relu(x.mean(-1)).sqrt()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.c = nn.Conv1d(2, 10, 3); s.pool = RootPool(); s.proj = nn.Linear(10, 6)
    def forward(s, x): return s.proj(s.pool(s.c(x)))

def build():
    torch.manual_seed(46); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.02); g = torch.Generator().manual_seed(47); batches = []
    for i in range(10):
        x = torch.randn(9, 2, 12, generator=g); x[1] = x[0]; x[5] = x[4]         # the same photo twice
        batches.append((x, torch.arange(9) // 3))
    def loss_fn(m, b):
        z = m(b[0]); d = torch.cdist(z, z); same = b[1][:, None] == b[1]
        pos = d.masked_fill(~same, -torch.inf).max(1).values; neg = d.masked_fill(same, torch.inf).min(1).values
        return torch.relu(pos - neg + 0.5).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
