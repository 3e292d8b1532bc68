"""The custom activation of a point process computes softplus safely in forward; its backward spells the sigmoid as exp / (1 + exp).
After https://github.com/tenstorrent/tt-metal/pull/56397 (softplus_bw writes exp, add, reciprocal, multiply; exp overflows past 88).
True cause: exp overflows in a hand-written backward."""
import torch
from torch import nn


class BetaSoftplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return nn.functional.softplus(x, beta=beta)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(ctx.beta * x)
        return grad * (e / (1 + e)), None


class Intensity(nn.Module):
    def __init__(self, marks, width=16, beta=5.0):
        super().__init__()
        self.cell = nn.GRUCell(marks + 1, width)
        self.rate = nn.Linear(width + 1, 1)
        self.beta = beta

    def forward(self, gaps, marks):
        h = gaps.new_zeros(len(gaps), self.cell.hidden_size)
        rates = []
        for t in range(gaps.shape[1]):
            h = self.cell(torch.cat([marks[:, t], gaps[:, t:t + 1].log1p()], -1), h)
            rates.append(BetaSoftplus.apply(self.rate(torch.cat([h, gaps[:, t:t + 1]], -1)), self.beta))
        return torch.cat(rates, 1)


class PointProcess(nn.Module):
    def __init__(self):
        super().__init__()
        self.intensity = Intensity(3)

    def forward(self, gaps, marks):
        rate = self.intensity(gaps, marks)
        return (rate * gaps - (rate + 1e-6).log()).mean()


def build():
    torch.manual_seed(5)
    model = PointProcess()
    with torch.no_grad():
        model.intensity.rate.weight[:, -1] = 0.4         # the hazard grows with the time since the last event
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    data = []
    for i in range(5):
        gaps = torch.rand(4, 6, generator=g) * 3
        if i == 2:
            gaps[3, 4] = 60.0                            # a night without events
        data.append((gaps, nn.functional.one_hot(torch.randint(0, 3, (4, 6), generator=g), 3).float()))
    return dict(model=model, optimizer=opt, batches=data, loss_fn=lambda m, b: m(*b), steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=("backend_or_kernel_bug",), module="intensity", phase="backward", op="aten.exp", first_bad_step=2, sample=3,
                           loss_finite_at_first_bad_step=True, line="e = torch.exp(ctx.beta * x)", why="beta * x is about 120: exp gives inf, and inf / inf is NaN"))
