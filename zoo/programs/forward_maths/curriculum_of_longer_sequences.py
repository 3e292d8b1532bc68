"""A linear recurrent cell is trained with a curriculum of longer and longer sequences; its largest eigenvalue is 1.3, and at 400 steps the state overflows.
After https://github.com/chentuochao/Sound_Bubble/issues/4 (long sequences through the recurrent layer; reduce the sequence length).
True cause: the recurrence explodes within one forward pass."""
import torch
import torch.nn as nn


class Cell(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.w = nn.Parameter(1.3 * torch.eye(d) + 0.01 * torch.randn(d, d))
        self.u = nn.Linear(2, d)

    def forward(self, h, x):
        return h @ self.w + self.u(x)


class LinearRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.norm, self.out = Cell(), nn.LayerNorm(6), nn.Linear(6, 1)

    def forward(self, xs):
        h = torch.zeros(xs.shape[1], 6)
        for x in xs:
            h = self.cell(h, x)
        return self.out(self.norm(h))


def build():
    torch.manual_seed(5)
    rnn = LinearRNN()
    opt = torch.optim.SGD(rnn.parameters(), lr=1e-5)
    g = torch.Generator().manual_seed(6)
    lengths = [5, 10, 20, 40, 400]
    data = [(torch.randn(n, 3, 2, generator=g), torch.randn(3, 1, generator=g)) for n in lengths]

    def loss_fn(m, b):
        return (m(b[0]) - b[1]).square().mean()

    return dict(model=rnn, optimizer=opt, batches=data, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", also=("bad_initialisation",), module="cell", also_module=("norm",), phase="forward", op="aten.mm", also_op=("aten.native_layer_norm",), first_bad_step=4, line="return h @ self.w + self.u(x)"))
