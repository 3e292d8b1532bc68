"""An HDR network ends in a gamma curve x ** (1/2.2) without a clamp: where the linear output is negative, the power is NaN.
True cause: a fractional power of a negative number. The argument is outside the domain."""
import torch, torch.nn as nn

class Tonemap(nn.Module):
    def forward(s, x): return x ** (1 / 2.2)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv2d(3, 3, 1); s.tone = Tonemap()
    def forward(s, x): return s.tone(s.conv(x))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.conv.weight.abs_(); model.conv.bias.fill_(0.05)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.rand(2, 3, 4, 4, generator=g) + 0.1
        if i == 3: x[1, :, 0, 0] = -2.0                        # demosaicing overshoot
        batches.append((x, torch.rand(2, 3, 4, 4, generator=g)))
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="domain_error", module="tone", phase="forward", op="aten.pow", first_bad_step=3))
