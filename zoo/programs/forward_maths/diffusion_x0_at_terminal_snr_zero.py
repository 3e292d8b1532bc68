"""Diffusion with a zero-terminal-SNR schedule: x0 = (x_t - sqrt(1-a) eps) / sqrt(a), and a[T-1] is exactly 0 by design; the
timestep T-1 is drawn for the first time in batch 3."""
import math, torch, torch.nn as nn
@torch.jit.script
def x0_from_eps(xt: torch.Tensor, a: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    return (xt - (1 - a).sqrt() * eps) / a.sqrt()
class Denoiser(nn.Module):
    def __init__(s): super().__init__(); s.t = nn.Embedding(50, 16); s.inp = nn.Conv2d(1, 16, 3, padding=1); s.out = nn.Conv2d(16, 1, 3, padding=1)
    def forward(s, x, t): return s.out(nn.functional.silu(s.inp(x) + s.t(t)[:, :, None, None]))
class Diffusion(nn.Module):
    def __init__(s, T=50):
        super().__init__(); s.unet = Denoiser(); a = torch.cos(torch.linspace(0, 1, T) * math.pi / 2) ** 2; a[-1] = 0.0; a[0] = 0.9999
        s.register_buffer("alphas_cumprod", a)
    def predict_x0(s, xt, t, eps):
        a = s.alphas_cumprod[t].view(-1, 1, 1, 1); return x0_from_eps(xt, a, eps)
    def forward(s, x0, t, noise):
        a = s.alphas_cumprod[t].view(-1, 1, 1, 1); xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        return s.predict_x0(xt, t, s.unet(xt, t))
def build():
    torch.manual_seed(0); model = Diffusion(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(11)
    def stream():
        for i in range(6):
            t = torch.randint(0, 40, (4,), generator=g)
            if i == 3: t[2] = 49
            yield {"x": torch.rand(4, 1, 8, 8, generator=g), "t": t, "eps": torch.randn(4, 1, 8, 8, generator=g)}
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b["x"], b["t"], b["eps"]), b["x"])
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, why="alphas_cumprod[49] is exactly 0 and x0 divides by its root."))
