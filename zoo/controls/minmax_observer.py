"""CONTROL: quantisation-aware training with running min/max buffers that start at +inf and -inf (as torch's MinMaxObserver does) and a late branch whose observer is not reached until step 4."""
import torch, torch.nn as nn

class Observe(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("min_val", torch.tensor(float("inf"))); s.register_buffer("max_val", torch.tensor(float("-inf")))
    def forward(s, x):
        d = x.detach(); s.min_val.copy_(torch.minimum(s.min_val, d.min())); s.max_val.copy_(torch.maximum(s.max_val, d.max()))
        sc = ((s.max_val - s.min_val) / 255).clamp_min(1e-8); return x + ((d / sc).round() * sc - d)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(6, 12); s.oa = Observe(); s.b = nn.Linear(12, 12); s.ob = Observe(); s.out = nn.Linear(12, 1)
    def forward(s, x, deep):
        h = s.oa(torch.relu(s.a(x)))
        if deep: h = h + s.ob(torch.relu(s.b(h)))
        return s.out(h)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randn(8, 1, generator=g), i >= 4) for i in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
