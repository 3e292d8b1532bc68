"""Irregular medical time series: a GRU whose state is scaled between visits by exp(rate * gap) with learned rates; for some hidden
units the rate is positive (nothing forbids it). Patient 5 of batch 3 comes back after 4,000 hours: exp(0.05 * 4000) overflows.
A long gap is real, valid data; the exponent is unbounded.
True cause: exp of a finite value above 88."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GapScaling(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(-0.05, 0.05, hidden))

    def forward(self, h, gap_hours):
        return h * torch.exp(gap_hours[:, None] * self.rate)


class VisitModel(nn.Module):
    def __init__(self, features=6, hidden=12):
        super().__init__()
        self.hidden = hidden
        self.scale = GapScaling(hidden)
        self.cell = nn.GRUCell(features, hidden)
        self.risk = nn.Linear(hidden, 1)

    def forward(self, visits, gaps):
        h = visits.new_zeros(visits.shape[0], self.hidden)
        for t in range(visits.shape[1]):
            h = self.cell(visits[:, t], self.scale(h, gaps[:, t]))
        return self.risk(h).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = VisitModel()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        gaps = torch.rand(8, 5, generator=g) * 30
        if i == 3:
            gaps[5, 3] = 4000.0
        batches.append((torch.randn(8, 5, 6, generator=g), gaps, torch.randint(0, 2, (8,), generator=g).float()))

    def loss_fn(m, b):
        return F.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="scale", phase="forward", op="aten.exp", first_bad_step=3,
                           also=dict(cause=["input_out_of_scale"])))
