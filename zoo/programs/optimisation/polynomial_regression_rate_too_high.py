"""Polynomial regression of a calibration curve with SGD at a rate of 400, copied from a script with normalised targets per thousand. Loss grows by
orders of magnitude at every step until the square overflows. The batch of the failing step also holds a strange reading (an outlier
of 6 sigma): it is innocent, without it the step fails in the same way, and at a ten-thousandth of the rate the run is healthy with it.
True cause: the learning rate. TRAP: suspicious but innocent data in the failing step."""
import torch
import torch.nn as nn


class Polynomial(nn.Module):
    def __init__(self, degree=4):
        super().__init__()
        self.powers = torch.arange(degree + 1).float()
        self.coef = nn.Linear(degree + 1, 1, bias=False)

    def forward(self, x):
        return self.coef(x[:, None] ** self.powers).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = Polynomial()
    opt = torch.optim.SGD(model.parameters(), lr=400.0)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(9):
        x = torch.rand(32, generator=g) * 2 - 1
        y = 0.3 + 0.5 * x - 0.8 * x ** 3 + 0.05 * torch.randn(32, generator=g)
        if i == 7:
            y[11] += 0.3
        batches.append((x, y))

    def loss_fn(m, b):
        return (m(b[0]) - b[1]).pow(2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=7, grads_finite=True, trap=True))
