"""A warm-up that should double the rate every epoch is stepped after every batch; fifteen batches later the rate is a hundred and more.
After https://github.com/crowsonkb/k-diffusion/issues/50 (sched.step() per step: the rate increases rapidly, essentially without warm-up).
True cause: the learning rate is too high because the schedule counts steps instead of epochs."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(d), nn.MultiheadAttention(d, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Forecaster(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Linear(3, d), nn.ModuleList([Block(d), Block(d)]), nn.Linear(d, 1)

    def forward(self, x):
        x = self.embed(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x)[..., 0]


def build():
    torch.manual_seed(0)
    model = Forecaster()
    opt = torch.optim.SGD(model.parameters(), lr=5e-3)
    warmup = torch.optim.lr_scheduler.MultiplicativeLR(opt, lambda epoch: 2.0)
    opt.register_step_post_hook(lambda *a: warmup.step())
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 10, 3, generator=g), torch.randn(8, 10, generator=g)) for _ in range(20)]

    def loss_fn(m, b):
        diff = m(b[0]) - b[1]
        return diff.pow(2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="blocks.0.mlp.0", phase="forward", op="aten.native_layer_norm", first_bad_step=10, line="return x + self.mlp(x)"))
