"""CONTROL: where(r > 0, sqrt(r), 0.1x) after a ReLU: the sqrt's backward is NaN at r = 0, and the ReLU's backward writes exact zeros over it. All gradients are finite."""
import torch, torch.nn as nn

class Act(nn.Module):
    def forward(s, x): r = torch.relu(x); return torch.where(r > 0, torch.sqrt(r), torch.zeros_like(r)) + 0.1 * x
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(6, 10); s.act = Act(); s.b = nn.Linear(10, 1)
    def forward(s, x): return s.b(s.act(s.a(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(12, 6, generator=g), torch.randn(12, 1, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
