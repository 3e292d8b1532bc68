"""Flow matching with a network that predicts the clean sample: its velocity is (x - x_t) / (1 - t). The times are stored in bfloat16 with the latents; a time of
0.9985 becomes exactly 1.
After https://github.com/Zehong-Ma/PixelGen/issues/5 (the loss uses (x_theta - x_t) / (1 - t), which grows as t approaches 1).
True cause: a number close to one that bfloat16 rounds to one."""
import torch
from torch import nn


class CleanPredictor(nn.Module):
    def __init__(self, d=8, width=32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU())
        self.inp, self.out = nn.Linear(d, width), nn.Linear(width, d)

    def forward(self, x_t, t):
        return self.out(torch.nn.functional.silu(self.inp(x_t) + self.time(t)))


class VelocityFromClean(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = CleanPredictor()

    def forward(self, x_t, t):
        clean = self.net(x_t.float(), t.float())
        return (clean - x_t.float()) / (1 - t).float()


def noised(latents, noise, t):
    t = t.to(latents.dtype)
    return (1 - t) * noise + t * latents, t


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"velocity": VelocityFromClean()})
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5)
    batches = []
    for i in range(7):
        t = 0.05 + 0.9 * torch.rand(6, 1, generator=g)
        if i == 5:
            t[2] = 0.9985
        batches.append((torch.randn(6, 8, generator=g).bfloat16(), torch.randn(6, 8, generator=g).bfloat16(), t))

    def loss_fn(m, batch):
        latents, noise, t = batch
        x_t, t = noised(latents, noise, t)
        return nn.functional.mse_loss(m["velocity"](x_t, t), (latents - noise).float())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", also=("division_by_zero",), module="velocity", phase="forward", op="aten.div", first_bad_step=5, sample=2,
                           line="return (clean - x_t.float()) / (1 - t).float()", why="0.9985 is 1 in bfloat16; in float32 1 - t is 0.0015 and the run stays finite"))
