"""Diffusion with min-SNR weights min(snr, 5)/snr. t=0 has sigma=0: snr is Inf, 5/Inf = 0 (innocent, in every batch). The zero-terminal
schedule makes snr exactly 0 at t=T-1: 0/0. That t is drawn first at step 3."""
import torch, torch.nn as nn

class MinSNR(nn.Module):
    def __init__(s, fix):
        super().__init__(); a = torch.linspace(1, 0, 20); s.register_buffer("alpha2", a.clone()); s.fix = fix
    def forward(s, t):
        a = s.alpha2[t]; snr = a / (1 - a) if s.fix != "innocent" else a / (1 - a).clamp(min=1e-3)
        if s.fix == "true": return torch.where(snr > 5, 5 / snr, torch.ones_like(snr))
        return torch.minimum(snr, torch.full_like(snr, 5.0)) / snr
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.eps = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8)); s.w = MinSNR(fix)
    def forward(s, x, t): return s.eps(torch.cat([x, t[:, None] / 20], -1))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        t = torch.randint(1, 19, (8,), generator=g); t[0] = 0
        if k == 3: t[5] = 19
        batches.append((torch.randn(8, 8, generator=g), torch.randn(8, 8, generator=g), t))
    def loss_fn(m, b):
        x0, n, t = b; a = m.w.alpha2[t][:, None]; xt = a.sqrt() * x0 + (1 - a).sqrt() * n
        return (m.w(t) * ((m(xt, t) - n) ** 2).mean(-1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="w", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False, bad_sample=5,
                           why="snr is exactly 0 at the last timestep, 0/0; the Inf at t=0 becomes 5/Inf=0"))
