"""SincNet band-pass kernels: sinc(x) = where(x == 0, 1, sin(x) / x) with a learned cut-off; the centre tap has x = 0.
Forward after the where is right; backward of the unselected sin(x)/x is 0/0. True cause: unselected branch of torch.where."""
import torch, torch.nn as nn

class Sinc(nn.Module):
    def forward(s, x): return torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)
class SincConv(nn.Module):
    def __init__(s, n=6, k=15):
        super().__init__(); s.f = nn.Parameter(torch.linspace(0.3, 2.5, n)); s.sinc = Sinc(); s.register_buffer("t", torch.arange(k).float() - k // 2)
    def forward(s, w): k = s.sinc(s.f[:, None] * s.t) * s.f[:, None]; return nn.functional.conv1d(w[:, None], k[:, None])
class Net(nn.Module):
    def __init__(s): super().__init__(); s.front = SincConv(); s.cls = nn.Linear(6, 3)
    def forward(s, w): return s.cls(s.front(w).abs().mean(-1))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 64, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(4)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="front.sinc", phase="backward", op="aten.div", first_bad_step=0, loss_finite_at_first_bad_step=True))
