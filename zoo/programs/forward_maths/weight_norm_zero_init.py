"""Diffusion head that is zero-initialised ("zero_module") and then wrapped in weight_norm: g * v / ||v|| with v = 0.
Real: forum "weight_norm + zero init = nan". True cause: the weight's norm is exactly 0 in the denominator."""
import torch, torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm

class Denoiser(nn.Module):
    def __init__(s):
        super().__init__(); s.inp = weight_norm(nn.Conv1d(2, 12, 3, padding=1)); out = nn.Conv1d(12, 2, 3, padding=1)
        nn.init.zeros_(out.weight); nn.init.zeros_(out.bias); s.out = weight_norm(out)
    def forward(s, x, t): return s.out(torch.relu(s.inp(x)) * (1 + t))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Denoiser(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 2, 16, generator=g), torch.rand(4, 1, 1, generator=g), torch.randn(4, 2, 16, generator=g)) for _ in range(4)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0] * (1 - b[1]) + b[1] * b[2], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="out.parametrizations.weight.0", phase="forward", op="aten._weight_norm_interface", first_bad_step=0))
