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


def targets_of(bad: str) -> list[Tensor]:
    torch.manual_seed(1)
    targets = [torch.randn(8) for _ in range(4)]
    if bad == "one":
        targets[2] = targets[2][:1]
    elif bad == "nan":
        targets[2][5] = math.nan
    return targets


def test_what_the_loop_computed_by_the_name_of_its_batch_is_no_bad_batch() -> None:
    """One target less its mean is 0, and 0/0 is NaN: the data are finite."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    found = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        for y in targets_of("one"):
            y = (y - y.mean()) / (y - y.mean()).norm()
            guard.backward(((model(torch.ones(8, 4))[: len(y), 0] - y) ** 2).mean())
            found += [each for each in [guard.step().incident] if each is not None]
    assert [cause.slug for incident in found for cause in incident.causes if cause.proven] == ["division_by_zero"]


def test_a_batch_that_is_moved_and_shaped_is_still_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    found = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        for y in targets_of("nan"):
            y = y.to("cpu", non_blocking=True).float().view(-1)
            guard.backward(((model(torch.ones(8, 4))[:, 0] - y) ** 2).mean())
            found += [each for each in [guard.step().incident] if each is not None]
    (incident,) = found
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("bad_input_data", True)


def test_a_large_batch_whose_overflow_the_program_leaves_out_is_no_bad_batch() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def loss_fn(scale: Tensor) -> Tensor:
        h = model(torch.ones(8, 4)).abs() * scale + 0.1
        return torch.where(h > 20, h, torch.log(torch.expm1(h))).mean()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), quiet=True) as guard:
        scales = [torch.full((8, 1), 1.0)] * 3 + [torch.full((8, 1), 300.0)]
        incident = [guard.attempt(loss_fn, scale) for scale in scales][-1].incident
    assert incident is not None
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("where_unselected_branch", True)
