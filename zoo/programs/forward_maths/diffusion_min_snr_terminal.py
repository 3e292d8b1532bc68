"""Diffusion with a zero terminal SNR schedule and min-SNR weighting: for t = T-1 the SNR is 0 and min(snr, 5) / snr is 0/0.
Threads: huggingface/diffusers#5654.
True cause: division by a signal-to-noise ratio of exactly zero (only the samples with the last time step)."""
import torch, torch.nn as nn

class Denoiser(nn.Module):
    def __init__(s): super().__init__(); s.time = nn.Embedding(50, 16); s.inp = nn.Linear(8, 16); s.net = nn.Sequential(nn.SiLU(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 8))
    def forward(s, x, t): return s.net(s.inp(x) + s.time(t))

def schedule(n=50):
    a = torch.cumprod(1 - torch.linspace(1e-3, 0.2, n), 0).sqrt(); a = (a - a[-1]) * a[0] / (a[0] - a[-1]); return a ** 2     # rescaled to zero terminal SNR

def build():
    torch.manual_seed(0); model = Denoiser(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); abar = schedule()
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        t = torch.randint(0, 49, (4,), generator=g)
        if i == 4: t[2] = 49
        batches.append((torch.randn(4, 8, generator=g), torch.randn(4, 8, generator=g), t))
    def loss_fn(m, b):
        x, eps, t = b; a = abar[t][:, None]; xt = a.sqrt() * x + (1 - a).sqrt() * eps
        snr = (a / (1 - a)).squeeze(-1); weight = snr.clamp(max=5.0) / snr
        return (weight * ((m(xt, t) - eps) ** 2).mean(-1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4))
