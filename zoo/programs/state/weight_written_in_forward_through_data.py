"""Spectral clipping inside forward through `.data`: the weight is divided by its norm, and after a prune that norm is 0.
True cause: the program overwrote its weight in the forward pass."""
import torch, torch.nn as nn

class Clip(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(5, 5, bias=False); s.t = 0
    def forward(s, x):
        s.t += 1
        if s.t == 4: s.lin.weight.data.zero_()
        s.lin.weight.data /= s.lin.weight.data.norm()
        return s.lin(x)
def build():
    torch.manual_seed(0); model = nn.Sequential(Clip(), nn.Tanh(), nn.Linear(5, 1)); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 5, generator=g) for _ in range(6)]
    def loss_fn(m, x): return m(x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="state_overwritten", also=["division_by_zero"], module="0", phase="forward", op="aten.div", first_bad_step=3,
                           never_said=["replace the device", "nothing wrote it", "transient"]))
