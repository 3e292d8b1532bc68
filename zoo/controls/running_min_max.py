"""CONTROL: an observer's running minimum and maximum start at +inf and -inf, as they should, and become finite in the first forward; a second
observer sits in a branch that is not used yet and keeps its infinities."""
import torch, torch.nn as nn

class MinMax(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("lo", torch.tensor(float("inf"))); s.register_buffer("hi", torch.tensor(float("-inf")))
    def forward(s, x):
        with torch.no_grad(): s.lo.copy_(torch.minimum(s.lo, x.amin())); s.hi.copy_(torch.maximum(s.hi, x.amax()))
        return x.clamp(s.lo, s.hi)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(4, 6); s.obs = MinMax(); s.later = MinMax(); s.head = nn.Linear(6, 1)
    def forward(s, x, late=False): x = s.obs(s.fc(x)); return s.head(s.later(x) if late else x)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, 1, generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
