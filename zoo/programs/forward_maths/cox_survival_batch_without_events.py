"""DeepSurv: Cox partial likelihood, mini-batches of patients.

What goes wrong: in one batch all patients are censored; the sum over the events is divided by the
number of events, 0/0.
Follows https://github.com/liupei101/TFDeepSurv/issues/15 and https://github.com/havakv/pycox/issues/124.
True cause: a batch holds only censored patients, so the loss divides zero by an event count of zero."""

import torch
from torch import nn


class RiskNet(nn.Module):
    def __init__(self, n=7):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n, 24), nn.SELU(), nn.Linear(24, 1, bias=False))

    def forward(self, x):
        return self.net(x).squeeze(1)


class CoxLoss(nn.Module):
    def forward(self, risk, time, event):
        order = torch.argsort(time, descending=True)
        risk, event = risk[order], event[order]
        log_cum = torch.logcumsumexp(risk, dim=0)
        return -((risk - log_cum) * event).sum() / event.sum()


def patients(n=240, batch=12):
    g = torch.Generator().manual_seed(6)
    x = torch.randn(n, 7, generator=g)
    time = torch.exp(-x[:, 0]) * torch.rand(n, generator=g)
    event = (torch.rand(n, generator=g) < 0.3).float()
    event[::batch] = 1.0
    event[168:180] = 0.0  # a ward where nobody was followed to the end
    return [(x[i:i + batch], time[i:i + batch], event[i:i + batch]) for i in range(0, n, batch)]


def build():
    torch.manual_seed(1)
    model = RiskNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    cox = CoxLoss()

    def loss_fn(model, batch):
        x, time, event = batch
        return cox(model(x), time, event)

    return dict(model=model, optimizer=optimizer, batches=patients(), loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("empty_reduction", "bad_input_data"), first_bad_step=14, phase="forward",
                           module="loss", op="aten.div", line="/ event.sum()", repair=("/ event.sum()", "/ event.sum().clamp(min=1)")))
