"""Quantisation-aware training with a custom autograd.Function. Forward guards against an all-zero row (scale 0 becomes 1); the hand-written
backward divides by the saved, unguarded scale. A row of the activations is exactly 0 when a sensor is silent (batch 2, no biases).
True cause: division by zero inside the custom backward; the forward is finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FakeQuantise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        scale = x.abs().amax(-1, keepdim=True)
        safe = torch.where(scale == 0, torch.ones_like(scale), scale)
        q = torch.round(x / safe * levels) / levels * safe
        ctx.save_for_backward(x, scale)
        return q

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        inside = (x / scale).abs() <= 1.0
        return torch.where(inside, grad, 0.1 * grad * x / scale), None


class QuantLinear(nn.Module):
    def __init__(self, i, o, levels=7):
        super().__init__()
        self.weight, self.levels = nn.Parameter(torch.randn(o, i) * 0.3), levels

    def forward(self, x):
        return F.linear(FakeQuantise.apply(x, self.levels), self.weight)


class SensorNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(8, 12, bias=False)
        self.q1, self.q2 = QuantLinear(12, 12), QuantLinear(12, 3)

    def forward(self, x):
        return self.q2(torch.tanh(self.q1(torch.tanh(self.inp(x)))))


def build():
    torch.manual_seed(0)
    model = SensorNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        x = torch.randn(6, 8, generator=g)
        if i == 2:
            x[3] = 0.0
        batches.append((x, torch.randint(0, 3, (6,), generator=g)))

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="q2", phase="backward", op="aten.div", first_bad_step=2,
                           node="FakeQuantiseBackward", loss_finite_at_first_bad_step=True))
