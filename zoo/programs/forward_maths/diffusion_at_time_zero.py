"""A diffusion model predicts the noise and divides by sigma(t); t is drawn by the program's own generator, and sigma(0) is 0.
True cause: division by zero."""
import torch, torch.nn as nn

class Eps(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4))
    def forward(s, x, t): return s.f(torch.cat([x, t[:, None]], -1))
def build():
    torch.manual_seed(0); model = Eps(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); draw = torch.Generator().manual_seed(9)
    batches = [torch.randn(6, 4, generator=g) for _ in range(12)]
    def loss_fn(m, x):
        t = torch.randint(0, 40, (6,), generator=draw).float() / 40
        sigma = torch.sin(t * 1.57)[:, None]; noise = torch.randn(6, 4, generator=draw)
        score = m(x + sigma * noise, t) / sigma
        return (score + noise).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=1, never_said=["transient", "compiled", "replace the device"]))
