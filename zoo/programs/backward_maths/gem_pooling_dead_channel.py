"""Generalised-mean pooling with a learned exponent, mean(relu(x) ** p) ** (1 / p), without the usual clamp: a channel that is 0 on a whole image has slope 0 ** (1/p - 1).
True cause: singular gradient of the root at exactly 0 (a black image in batch 2); the forward is finite."""
import torch, torch.nn as nn

class GeM(nn.Module):
    def __init__(s): super().__init__(); s.p = nn.Parameter(torch.tensor(3.0))
    def forward(s, x): return x.pow(s.p).mean((2, 3)).pow(1 / s.p)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv2d(1, 4, 3, bias=False); s.gem = GeM(); s.head = nn.Linear(4, 3)
    def forward(s, x): return s.head(s.gem(s.conv(x).abs()))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.NAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(4, 1, 6, 6, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(5)]
    batches[2][0][3] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1], label_smoothing=0.1)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="gem", phase="backward", op="aten.pow", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
