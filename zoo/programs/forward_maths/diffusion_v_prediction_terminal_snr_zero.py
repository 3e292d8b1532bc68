"""v-prediction diffusion with min-SNR weighting and a schedule that was rescaled to zero terminal SNR: at the last timestep
alpha_bar is exactly 0, snr is 0, and min(snr, 5) / snr is 0/0. Timesteps come from the sampler's own torch.Generator with
antithetic pairs; the last timestep is first drawn at step 3 (by construction: the sampler always visits the end point there).
True cause: division by zero in the loss weight, for the sample with t = T-1. TRAP: own generator, python counter, no bad data."""
import torch
import torch.nn as nn

T = 50


def zero_terminal_schedule():
    betas = torch.linspace(1e-4, 0.2, T)
    root = torch.cumprod(1 - betas, 0).sqrt()
    first, last = root[0].clone(), root[-1].clone()
    return ((root - last) * (first / (first - last))) ** 2


class Timesteps:
    """Random timesteps; every fourth call includes both end points so that the ends of the schedule are trained."""

    def __init__(self, seed):
        self.gen, self.calls = torch.Generator().manual_seed(seed), 0

    def __call__(self, n):
        t = torch.randint(1, T - 1, (n,), generator=self.gen)
        self.calls += 1
        if self.calls % 4 == 0:
            t[0], t[-1] = 0, T - 1
        return t


class Denoiser(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.time = nn.Embedding(T, 32)
        self.inp, self.out = nn.Linear(d, 32), nn.Linear(32, d)

    def forward(self, x, t):
        return self.out(torch.nn.functional.silu(self.inp(x) + self.time(t)))


def build():
    torch.manual_seed(0)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    alpha_bar = zero_terminal_schedule()
    draw = Timesteps(seed=9)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 12, generator=g) for _ in range(8)]

    def loss_fn(m, x0):
        t = draw(len(x0))
        ab = alpha_bar[t][:, None]
        noise = torch.randn(x0.shape, generator=draw.gen)
        xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
        v = ab.sqrt() * noise - (1 - ab).sqrt() * x0
        per_sample = (m(xt, t) - v).pow(2).mean(-1)
        snr = (ab / (1 - ab)).squeeze(-1)
        weight = snr.clamp(max=5.0) / snr
        return (weight * per_sample).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=3, trap=True))
