"""Samples that fail first because of the weights are not named."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident


def train(rate: float, *, giant: bool = False) -> Incident:
    """The first incident of an exponential loss in which sample 3 of each batch is the largest, or a giant."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=rate), quiet=True)
    for step in range(10):
        inputs, targets = torch.randn(16, 4), torch.randn(16, 1)
        inputs[3] *= 1e25 if giant and step == 5 else 6

        def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
            return torch.exp((model(batch[0]) - batch[1]).abs() * 0.2).mean()

        incident = guard.attempt(loss_of, (inputs, targets)).incident
        if incident is not None:
            return incident
    raise AssertionError("no incident")


def test_of_a_learning_rate_no_sample_is_named() -> None:
    incident = train(4.0)
    assert incident.cause is not None
    assert (incident.cause.slug, incident.samples) == ("lr_too_high", ())


def test_a_sample_of_another_scale_is_named() -> None:
    incident = train(1e-3, giant=True)
    assert incident.cause is not None
    assert (incident.cause.slug, incident.samples) == ("input_out_of_scale", (3,))
