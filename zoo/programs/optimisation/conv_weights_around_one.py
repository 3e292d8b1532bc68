"""Image generator whose init function treats every layer like a normalisation layer: normal_(w, 1.0, 0.02) also hits the convolutions (mean 1
instead of 0). Each layer multiplies the signal by about its fan-in, and the very first forward overflows.
True cause: wrong initialisation; the step is finite when the convolution weights are rescaled."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

def weights_init(m):
    if m.__class__.__name__.startswith(("Conv", "GroupNorm")): nn.init.normal_(m.weight, 1.0, 0.02)      # bug: 0.0 for Conv*
class Stage(nn.Module):
    def __init__(s, c): super().__init__(); s.conv = nn.Conv2d(c, c, 3, padding=1); s.act = nn.LeakyReLU(0.2)
    def forward(s, x): return s.act(s.conv(x))
class Gen(nn.Module):
    def __init__(s, c=48, n=16): super().__init__(); s.inp = nn.Linear(8, c * 16); s.stages = nn.ModuleList([Stage(c) for _ in range(n)]); s.out = nn.Conv2d(c, 3, 1)
    def forward(s, z):
        x = s.inp(z).view(len(z), -1, 4, 4)
        for st in s.stages: x = st(x)
        return s.out(x)

def build():
    torch.manual_seed(23); model = Gen(); model.apply(weights_init); opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    g = torch.Generator().manual_seed(27); batches = [(torch.randn(4, 8, generator=g), torch.randn(4, 3, 4, 4, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="stages.15.conv", phase="forward", op="aten.convolution", first_bad_step=0))
