"""Truncated back-propagation through time over one long signal; the hidden state is carried over.

What goes wrong: the recurrent layer is linear and its matrix starts at 1.5 times an orthogonal one
(an "echo state" trick with the wrong radius). Detaching cuts the gradient, not the value: the
state grows by 1.5 per time step, over all chunks, until it overflows.
True cause: the recurrent matrix has spectral radius 1.5, so the hidden state that is carried from chunk to
chunk grows until it overflows."""

import torch
from torch import nn


class LinearMemory(nn.Module):
    def __init__(self, size=24, radius=1.5):
        super().__init__()
        w = torch.linalg.qr(torch.randn(size, size))[0]
        self.register_buffer("w", radius * w)
        self.inp = nn.Linear(1, size)

    def forward(self, x, h):
        outs = []
        for t in range(x.shape[1]):
            h = h @ self.w + self.inp(x[:, t])
            outs.append(h)
        return torch.stack(outs, 1), h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = LinearMemory()
        self.norm = nn.LayerNorm(24)
        self.read = nn.Linear(24, 1)
        self.hidden = None

    def forward(self, x):
        if self.hidden is None:
            self.hidden = torch.zeros(x.shape[0], 24)
        seq, h = self.memory(x, self.hidden)
        self.hidden = h.detach()
        return self.read(self.norm(seq * 1e-3))


def chunks():
    torch.manual_seed(0)
    s = torch.sin(torch.arange(401) * 0.3) + 0.1 * torch.randn(4, 401)
    for i in range(0, 400, 16):
        yield s[:, i:i + 16, None], s[:, i + 1:i + 17, None]


def build():
    batches = list(chunks())
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def loss_fn(model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=len(batches),
                autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", also=("bad_initialisation", "exploding_gradient"), first_bad_step=7,
                           phase="forward", module="norm", op="aten.native_layer_norm", also_op=("aten.mm", "aten.add"),
                           also_module=("memory", "memory.inp"), line="return self.read(self.norm(seq * 1e-3))",
                           repair=("radius=1.5", "radius=0.95")))
