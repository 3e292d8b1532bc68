"""NaN in targets that a mask leaves out, where the loss cannot be computed again: no proof of a bad batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident


def first_incident(targets: Tensor, *, masked: bool) -> Incident:
    """The parts of the model are called directly, so the first call of the model is not seen."""
    torch.manual_seed(0)
    parts = nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)})
    with nantrap.Guard(parts, torch.optim.SGD(parts.parameters(), lr=0.1), quiet=True) as guard:
        for x, y in [(torch.randn(6, 4), targets)]:
            error = (parts["head"](parts["body"](x).tanh()) - y).square()
            known = (~y.isnan()).float()
            loss = (error * known).sum() / known.sum() if masked else error.mean()
            guard.backward(loss)
            incident = guard.step().incident
    assert incident is not None
    return incident


def test_a_mask_after_the_arithmetic_is_not_proven_to_be_the_batch() -> None:
    targets = torch.randn(6, 3)
    targets[2, 1] = math.nan
    best = first_incident(targets, masked=True).causes[0]
    assert not (best.slug == "bad_input_data" and best.proven)


def test_the_bad_targets_are_still_named() -> None:
    targets = torch.randn(6, 3)
    targets[2, 1] = math.nan
    best = first_incident(targets, masked=False).causes[0]
    assert best.slug == "bad_input_data"
    assert "1 NaN among 18 values" in best.evidence[0].text
