"""A scalar LSTM with exponential gates, without the running maximum that keeps them in range: the cell and its normaliser are sums of exp. A recording with a loud
passage drives the input gate above 88.
After https://github.com/muditbhargava66/PyxLSTM/issues/15 (the stabiliser state m is missing from the sLSTM).
True cause: exp overflows in the gate."""
import torch
from torch import nn


class SLSTMCell(nn.Module):
    def __init__(self, d_in, d):
        super().__init__()
        self.x = nn.Linear(d_in, 4 * d)
        self.h = nn.Linear(d, 4 * d, bias=False)

    def forward(self, x, state):
        h, c, n = state
        i, f, z, o = (self.x(x) + self.h(h)).chunk(4, -1)
        i, f = torch.exp(i), torch.sigmoid(f)
        c = f * c + i * torch.tanh(z)
        n = f * n + i
        h = torch.sigmoid(o) * c / n.clamp(min=1e-6)
        return h, c, n


class SLSTM(nn.Module):
    def __init__(self, d_in, d):
        super().__init__()
        self.cell, self.d = SLSTMCell(d_in, d), d

    def forward(self, x):
        state = tuple(x.new_zeros(len(x), self.d) for _ in range(3))
        out = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            out.append(state[0])
        return torch.stack(out, 1)


class EventDetector(nn.Module):
    def __init__(self, bands=5, d=12):
        super().__init__()
        self.front = nn.Linear(bands, 8)
        self.slstm = SLSTM(8, d)
        self.head = nn.Linear(d, 2)

    def forward(self, energy):
        return self.head(self.slstm(self.front(energy)).mean(1))


def build():
    torch.manual_seed(0)
    model = EventDetector()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(4)
    batches = []
    for i in range(6):
        energy = torch.rand(4, 12, 5, generator=g)
        if i == 4:
            energy[2, 7] += 1500.0
        batches.append({"energy": energy, "label": torch.randint(0, 2, (4,), generator=g)})
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b["energy"]), b["label"]), steps=6, autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=("input_out_of_scale",), module="slstm.cell", phase="forward", op="aten.exp", first_bad_step=4, sample=2,
                           line="i, f = torch.exp(i), torch.sigmoid(f)", why="the pre-activation of the input gate is above 88.7 at one time of recording 2"))
