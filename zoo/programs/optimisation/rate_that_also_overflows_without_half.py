"""A network for log-depth under float16 autocast; exp and the squared error are in float32. With half precision switched on, an Inf
makes everybody look for an overflow of float16, but no activation is near 65504, and without autocast the same step fails in the same
way. The rate of 10 moves the log-depth from about 0 into the thousands in one update. Half is innocent; the true cause is the rate."""
import torch
from torch import nn


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                 nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.enc(x)).squeeze(-1)


def loss_fn(model, batch):
    depth = torch.exp(model(batch[0]).float())
    return (depth - batch[1]).pow(2).mean()


def build():
    torch.manual_seed(33)
    model = DepthNet()
    batches = [(torch.rand(32, 12), torch.rand(32) * 4 + 1) for _ in range(4)]
    opt = torch.optim.SGD(model.parameters(), lr=10.0)
    truth = dict(
        cause="lr_too_high", first_bad_step=1, phase="forward", module="loss", op="aten.exp",
        line="depth = torch.exp(model(batch[0]).float())",
        why="weights go from 0.1 to tens in one update and the log-depth from 0 to thousands; without autocast the same step overflows",
        repair=("lr=10.0", "lr=0.1"), **{"not": ["fp16_forward_overflow"]},
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16, truth=truth)
