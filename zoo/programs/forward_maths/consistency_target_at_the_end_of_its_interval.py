"""A few-step generator builds its target from a smaller time t - 0.01 and, near the end of the interval, from 1 / (t - end). One time is drawn at the end itself; there
the quotient is inf, and the new output layer gives exactly zero, so that their product is NaN, which the clamp behind it keeps.
After https://github.com/inclusionAI/TwinFlow/issues/15 (t - tt was zero, an anomaly in 1.0 / (t - tt), the loss became NaN).
True cause: division by zero in a target without gradients."""
import torch
from torch import nn


class VelocityNet(nn.Module):
    def __init__(self, d=6, width=24):
        super().__init__()
        self.inp = nn.Linear(d + 2, width)
        self.out = nn.Linear(width, d)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t, end):
        return self.out(torch.nn.functional.silu(self.inp(torch.cat([x, t, end], -1))))


@torch.no_grad()
def build_target(net, predicted, velocity, x_t, t, end):
    earlier = torch.maximum(t - 0.01, end)
    following = net(x_t - velocity * 0.01, earlier, end)
    near = t < end + 0.01
    left = torch.where(near, torch.ones_like(t), 100 * (t - end))
    right = torch.where(near, 1 / (t - end), torch.full_like(t, 100.0))
    correction = predicted * left - following * right - velocity
    return predicted - correction.clamp(-1.0, 1.0)


def build():
    torch.manual_seed(0)
    net = nn.ModuleDict({"velocity": VelocityNet()})
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        data, noise = torch.randn(8, 6, generator=g), torch.randn(8, 6, generator=g)
        t, end = 0.2 + 0.8 * torch.rand(8, 1, generator=g), torch.full((8, 1), 0.1)
        if i == 0:
            t[5] = 0.1
        batches.append({"data": data, "noise": noise, "t": t, "end": end})

    def loss_fn(m, b):
        x_t = (1 - b["t"]) * b["data"] + b["t"] * b["noise"]
        velocity = b["noise"] - b["data"]
        predicted = m["velocity"](x_t, b["t"], b["end"])
        target = build_target(m["velocity"], predicted, velocity, x_t, b["t"], b["end"])
        return (predicted - target).square().mean() + (predicted - velocity).square().mean()

    return dict(model=net, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("zero_times_inf",), module="loss", phase="forward", op="aten.reciprocal", also_op=("aten.mul",), first_bad_step=0, sample=5,
                           line="right = torch.where(near, 1 / (t - end)", why="t of row 5 equals the end of its interval; the branch with 1 / 0 is the selected one"))
