"""A small transformer-like block with a "linear warm-up": the factor should be min(1, step / 50) and is step * 50, since the author
inverted the fraction when he vectorised the schedule. Step 0 has a rate of zero and changes nothing; then the rate is 50, 100, 150
times the base rate. The true cause is the rate that this schedule sets."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(d, 48), nn.Linear(d, 48), nn.Linear(48, d)

    def forward(self, x):
        return x + self.down(self.up(x) * nn.functional.silu(self.gate(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.out = nn.Linear(24, 5)

    def forward(self, x):
        return self.out(self.blocks(x))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def feed(data, scheduler):
    for batch in data:
        yield batch
        scheduler.step()


def build():
    torch.manual_seed(25)
    model = Net()
    data = [(torch.randn(32, 24), torch.randint(0, 5, (32,))) for _ in range(6)]
    base_rate = 2.0
    opt = torch.optim.SGD(model.parameters(), lr=base_rate)
    warmup = 50
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: step * warmup)
    truth = dict(
        cause="lr_too_high", first_bad_step=3, phase="forward", module="blocks.1.up", also_module=["blocks.1.gate", "blocks.1"], op="aten.addmm",
        line="scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: step * warmup)",
        why="the warm-up factor is 50 at its first non-zero step instead of 0.02",
        repair=("lambda step: step * warmup", "lambda step: min(1, step / warmup)"),
    )
    return dict(model=model, optimizer=opt, batches=feed(data, scheduler), loss_fn=loss_fn, steps=6, autocast_dtype=None, truth=truth)
