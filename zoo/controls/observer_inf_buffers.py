"""CONTROL: QAT-style observers start with min=+inf, max=-inf buffers (by design), a `best_metric` buffer is -inf, one parameter is empty, one is complex. All healthy."""
import torch, torch.nn as nn

class Observer(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("min_val", torch.tensor(float("inf"))); s.register_buffer("max_val", torch.tensor(float("-inf")))
    def forward(s, x):
        if s.training:
            s.min_val.copy_(torch.minimum(s.min_val, x.detach().min())); s.max_val.copy_(torch.maximum(s.max_val, x.detach().max()))
        sc = (s.max_val - s.min_val).clamp(min=1e-8) / 255; q = torch.round((x - s.min_val) / sc).clamp(0, 255) * sc + s.min_val
        return x + (q - x).detach()
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.a = nn.Linear(6, 8); s.obs = Observer(); s.late = Observer(); s.b = nn.Linear(8, 2); s.none = nn.Parameter(torch.empty(0))
        s.z = nn.Parameter(torch.randn(8, dtype=torch.complex64)); s.register_buffer("best_metric", torch.tensor(float("-inf")))
    def forward(s, x, k):
        h = s.obs(torch.relu(s.a(x))); h = (torch.fft.fft(h) * s.z).abs().clamp(min=1e-3)
        if k >= 3: h = s.late(h)                                           # calibrated late
        return s.b(h) + s.none.sum()
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 2, (8,), generator=g), k) for k in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
