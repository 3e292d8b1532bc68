"""The last layer of every residual branch starts at zero, and spectral_norm is put on it afterwards: the layer's largest singular value is 0, and W / 0 is NaN.
True cause: division by a spectral norm of exactly 0 in the parametrization."""
import torch, torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm

class Branch(nn.Module):
    def __init__(s, zero):
        super().__init__(); s.inner = spectral_norm(nn.Linear(8, 8)); outer = nn.Linear(8, 8)
        if zero: nn.init.zeros_(outer.weight)
        s.outer = spectral_norm(outer)
    def forward(s, x): return x + s.outer(nn.functional.leaky_relu(s.inner(x)))

def build():
    torch.manual_seed(0); model = nn.Sequential(Branch(False), Branch(True), nn.Linear(8, 1)); opt = torch.optim.NAdam(model.parameters(), lr=2e-4)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 8, generator=g), torch.randn(6, 8, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.relu(1 - m(b[0])).mean() + nn.functional.relu(1 + m(b[1])).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="1.outer.parametrizations.weight.0", phase="forward", op="aten.div", first_bad_step=0))
