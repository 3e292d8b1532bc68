"""Diffusion with a loss weighted by 1/SNR, a linear schedule whose last alpha is exactly zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class Denoiser(nn.Module):
    def __init__(s): super().__init__(); s.time = nn.Embedding(20, 16); s.inp = nn.Linear(8, 16); s.out = nn.Linear(16, 8)
    def forward(s, x, t): return s.out(F.silu(s.inp(x) + s.time(t)))
def build():
    torch.manual_seed(0); model = Denoiser(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    alpha_bar = torch.linspace(1, 0, 20)
    batches = [(torch.randn(8, 8, generator=g), torch.randint(1, 19, (8,), generator=g), torch.randn(8, 8, generator=g)) for _ in range(4)]; batches[2][1][5] = 19
    def loss_fn(m, b):
        x, t, noise = b; a = alpha_bar[t][:, None]
        pred = m(a.sqrt() * x + (1 - a).sqrt() * noise, t)
        weight = (1 - a) / a
        return (weight * (pred - noise) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", where="loss_fn", module="", phase="forward", op="aten.div", first_bad_step=2, line="weight = (1 - a) / a"))
