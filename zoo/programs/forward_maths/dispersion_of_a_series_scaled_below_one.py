"""Probabilistic forecasting of counts: the dispersion of the negative binomial is rescaled for series that were divided by their mean. For a series with a mean
below one the rescaled dispersion is negative.
After https://github.com/awslabs/gluonts/pull/814 (the scaling of alpha only makes sense for scale >= 1; otherwise alpha can become negative).
True cause: the logarithm of a negative number."""
import torch
from torch import nn


class CountHead(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mu, self.alpha = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, h, scale):
        mu = nn.functional.softplus(self.mu(h)).squeeze(-1)
        alpha = nn.functional.softplus(self.alpha(h)).squeeze(-1)
        return scale * mu, alpha + (scale - 1) / (scale * mu)


class DeepAR(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.head = CountHead(width)

    def forward(self, history):
        scale = history.mean(1, keepdim=True).clamp(min=0.1)
        h, _ = self.lstm((history / scale).unsqueeze(-1))
        return self.head(h, scale)


class NegativeBinomialNLL(nn.Module):
    def forward(self, mu, alpha, y):
        r = 1 / alpha
        log_odds = torch.log(alpha * mu)
        return -(torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1) + y * log_odds - (y + r) * torch.log1p(alpha * mu)).mean()


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"net": DeepAR(), "nll": NegativeBinomialNLL()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(20)
    levels = [[4.0, 9.0, 2.5, 30.0], [6.0, 3.0, 12.0, 5.0], [8.0, 0.15, 4.0, 7.0], [3.0, 5.0, 8.0, 6.0]]
    batches = []
    for row in levels:
        rate = torch.tensor(row)[:, None].expand(4, 15)
        counts = torch.poisson(rate, generator=g)
        batches.append((counts[:, :-1], counts[:, 1:]))

    def loss_fn(m, b):
        mu, alpha = m["net"](b[0])
        return m["nll"](mu, alpha, b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="domain_error", module="nll", phase="forward", op="aten.log", also_op=("aten.log1p",), first_bad_step=2, sample=1,
                           line="log_odds = torch.log(alpha * mu)", why="series 1 has a scale far below one, so (scale - 1) / (scale * mu) makes its alpha negative"))
