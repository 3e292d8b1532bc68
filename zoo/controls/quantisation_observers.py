"""CONTROL: quantisation-aware training; the observers' min and max buffers start at +inf and -inf, as observers do, and are finite from the first
forward on. The fake-quantised network trains normally."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class FakeQuant(nn.Module):
    def __init__(s):
        super().__init__(); s.register_buffer("lo", torch.tensor(float("inf"))); s.register_buffer("hi", torch.tensor(float("-inf")))
    def forward(s, x):
        with torch.no_grad(): s.lo.copy_(torch.minimum(s.lo, x.min())); s.hi.copy_(torch.maximum(s.hi, x.max()))
        step = (s.hi - s.lo).clamp(min=1e-6) / 255; q = ((x - s.lo) / step).round() * step + s.lo
        return x + (q - x).detach()                                              # straight-through
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.c = nn.Conv2d(1, 6, 3); s.q1 = FakeQuant(); s.f = nn.Linear(6, 3); s.q2 = FakeQuant()
    def forward(s, x): return s.q2(s.f(s.q1(torch.relu(s.c(x))).mean((2, 3))))

def build():
    torch.manual_seed(42); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9); g = torch.Generator().manual_seed(43)
    batches = [(torch.randn(8, 1, 7, 7, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(10)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
