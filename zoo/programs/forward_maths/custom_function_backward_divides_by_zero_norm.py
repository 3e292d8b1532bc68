"""Embedding net with a hand-written autograd.Function for unit-length rows.

What goes wrong: forward protects the norm with a maximum, backward forgets it: for an item whose
hidden units are all off (there is no bias), backward divides by a norm of zero.
True cause: the custom backward divides by the unprotected norm, which is zero for an item whose hidden units
are all off."""

import torch
from torch import nn


class UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        norm = x.norm(dim=1, keepdim=True)
        y = x / norm.clamp(min=1e-6)
        ctx.save_for_backward(y, norm)
        return y

    @staticmethod
    def backward(ctx, grad_y):
        y, norm = ctx.saved_tensors
        inner = (grad_y * y).sum(1, keepdim=True)
        return (grad_y - y * inner) / norm


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 12, bias=False)
        self.fc2 = nn.Linear(12, 8, bias=False)

    def forward(self, x):
        h = self.fc2(torch.relu(self.fc1(x)))
        return UnitRows.apply(h)


def items():
    g = torch.Generator().manual_seed(40)
    for i in range(10):
        x = torch.rand(12, 6, generator=g)
        if i == 4:
            x[7] = -3.0
        yield x, torch.randint(0, 8, (12,), generator=g)


def build():
    torch.manual_seed(5)
    model = Encoder()
    with torch.no_grad():
        model.fc1.weight.abs_()
        model.fc2.weight.abs_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()

    def loss_fn(model, batch):
        x, y = batch
        return criterion(8 * model(x), y)

    return dict(model=model, optimizer=optimizer, batches=list(items()), loss_fn=loss_fn, steps=10,
                autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("singular_gradient_at_zero",), first_bad_step=4, phase="backward",
                           module="loss", op="aten.div", line="(grad_y - y * inner) / norm", sample=7,
                           repair=("(grad_y - y * inner) / norm", "(grad_y - y * inner) / norm.clamp(min=1e-6)")))
