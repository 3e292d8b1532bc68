"""A regression CNN trained by SGD with momentum 0.9 at a rate that was copied from a normalised network: the loss rises from
the second step on, until the squared error leaves fp32.
True cause: the step size; with a tenth of it the same batches are learned."""
import torch, torch.nn as nn

class Block(nn.Module):
    def __init__(s, i, o): super().__init__(); s.conv = nn.Conv2d(i, o, 3, padding=1); s.act = nn.LeakyReLU(0.2)
    def forward(s, x): return s.act(s.conv(x))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.stem = nn.Sequential(Block(1, 6), Block(6, 6)); s.head = nn.Linear(6, 1)
    def forward(s, x): return s.head(s.stem(x).mean((2, 3)))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(16, 1, 8, 8, generator=g) + 1, y=3 * torch.randn(16, 1, generator=g)) for _ in range(10)]
    def loss_fn(m, b): return (m(b["x"]) - b["y"]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=6))
