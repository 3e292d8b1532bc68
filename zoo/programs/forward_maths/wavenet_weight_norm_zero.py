"""WaveNet: the last 1x1 convolution starts at zero, and weight_norm is applied to every layer: v / |v| is 0/0.
True cause: division by a norm of exactly zero."""
import torch, torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm

class WaveNet(nn.Module):
    def __init__(s):
        super().__init__(); last = nn.Conv1d(8, 1, 1); nn.init.zeros_(last.weight); s.inp = weight_norm(nn.Conv1d(1, 8, 3, padding=1)); s.mid = weight_norm(nn.Conv1d(8, 8, 3, padding=2, dilation=2)); s.last = weight_norm(last)
    def forward(s, x): h = torch.tanh(s.inp(x)); return s.last(h + torch.tanh(s.mid(h)))

def build():
    torch.manual_seed(0); model = WaveNet(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(2, 1, 20, generator=g) for _ in range(3)]
    def loss_fn(m, x): return nn.functional.mse_loss(m(x)[..., :-1], x[..., 1:])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="last.parametrizations.weight.0", phase="forward", op="aten._weight_norm_interface", first_bad_step=0))
