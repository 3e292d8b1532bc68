"""Quantisation-aware training: the scale of an activation map that is constant is zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class FakeQuant(nn.Module):
    def forward(s, x):
        low, high = x.amin(), x.amax()
        scale = (high - low) / 255
        q = (x - low) / scale
        return x + (q.round() * scale + low - x).detach()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv2d(1, 4, 3); s.quant = FakeQuant(); s.head = nn.Linear(4, 2)
    def forward(s, x): return s.head(s.quant(F.relu(s.conv(x))).mean((2, 3)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 1, 6, 6, generator=g), torch.randint(0, 2, (3,), generator=g)) for _ in range(4)]
    with torch.no_grad(): model.conv.bias.fill_(-0.3)
    batches[3] = (torch.zeros(3, 1, 6, 6), batches[3][1])
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="quant", phase="forward", op="aten.div", first_bad_step=3, line="q = (x - low) / scale"))
