"""Labels that a loss does not accept: in losses of torch, in hand-written ones, and seen from two lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    p = logits.sigmoid()
    right = p * labels + (1 - p) * (1 - labels)
    return ((1 - right) ** 1.5 * -right.clamp(min=1e-6).log()).mean()


def train(labels: Tensor, *, loss: Any = focal, repeatable: bool = True) -> Incident | None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    nn.init.constant_(model.bias, 3.0)
    x = torch.randn(len(labels), 3)
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), max_grad_norm=None, quiet=True) as guard:
        if repeatable:
            return guard.attempt(
                lambda batch: loss(model(batch["x"])[:, 0], batch["y"]), {"x": x, "y": labels}
            ).incident
        guard.backward(loss(model(x)[:, 0], labels))
        return guard.step().incident


def test_a_hand_written_loss_is_proven_with_the_labels_clamped() -> None:
    incident = train(torch.tensor([0.0, 1.0, 255.0, 1.0]))
    assert incident is not None
    cause = incident.causes[0]
    assert (cause.slug, cause.proven) == ("label_out_of_range", True)
    assert cause.summary == "y holds 255, and the loss is written for labels of 0 and 1"
    assert [evidence.text for evidence in cause.evidence] == [
        "aten.pow was given 1 negative value, for which it is not defined",
        "y holds labels of 0 and 1, and 255",
        "with y brought into [0, 1] the step is finite",
    ]
    assert cause.fix is not None
    assert cause.fix.text == "y.clamp(0, 1)"
    assert "not tried: leave out the places where y is 255 (an ignore value?): a mask" in cause.fix.words
    assert cause.fix.verified


def test_labels_of_many_classes_are_not_suspected() -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return ((logits - 100) ** 1.5 + 0 * labels).mean()

    incident = train(torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]), loss=loss)
    assert incident is not None
    assert incident.causes[0].slug != "label_out_of_range"


@pytest.mark.parametrize("targets", [[1.0, 3.0, 1.0, -1.0], [0.0, 1.0, 1.0, -1.0]])
def test_a_root_of_the_targets_themselves_is_no_matter_of_zero_and_one(targets: list[float]) -> None:
    def loss(outputs: Tensor, amounts: Tensor) -> Tensor:
        return (outputs - amounts.sqrt()).square().mean()

    incident = train(torch.tensor(targets), loss=loss)
    assert incident is not None
    assert incident.causes[0].slug == "domain_error"
    assert "label_out_of_range" not in {cause.slug for cause in incident.causes if cause.proven}


@pytest.mark.parametrize("value", [2.0, -1.0])
def test_a_label_that_does_no_harm_is_not_blamed(value: float) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return ((logits - 100) ** 1.5 + labels).mean()

    incident = train(torch.tensor([0.0, 1.0, value, 1.0]), loss=loss)
    assert incident is not None
    assert incident.causes[0].slug != "label_out_of_range"


@pytest.mark.parametrize("repeatable", [True, False])
def test_targets_are_not_blamed_for_what_fails_without_them(repeatable: bool) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(logits, labels) + (logits * 1e38).square().mean()

    incident = train(torch.tensor([0.0, 255.0, 255.0, 0.0]), loss=loss, repeatable=repeatable)
    assert incident is not None
    assert "label_out_of_range" not in [cause.slug for cause in incident.causes]


def test_two_lines_read_the_targets_from_the_graph() -> None:
    incident = train(
        torch.tensor([0.0, 2e38, 3e38, 0.0]),
        loss=lambda logits, labels: nn.functional.binary_cross_entropy_with_logits(logits * 9, labels, reduction="sum"),
        repeatable=False,
    )
    assert incident is not None
    assert incident.causes[0].slug == "label_out_of_range"
    summary = incident.causes[0].summary
    assert summary == "targets lie in [0, 3e+38], binary_cross_entropy_with_logits accepts [0, 1]"


def by_hand(p: Tensor, y: Tensor) -> Tensor:
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


def saturate(void: float, *, repeatable: bool, rate: float) -> Incident | None:
    """One batch with labels of 0 and 1, then a border of `void`: 255 drives the logits up until 1 - p is exactly 0."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.constant_(model.bias, 0.1)
    incident = None
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=rate), max_grad_norm=None, quiet=True) as guard:
        for step in range(4):
            x = torch.ones(16, 3)
            y = (torch.arange(16) % 2).float()
            y[::4] = void if step else 0.0
            batch = (x, y)
            if repeatable:
                outcome = guard.attempt(lambda batch: by_hand(model(batch[0])[:, 0].sigmoid(), batch[1]), batch)
            else:
                guard.backward(by_hand(model(batch[0])[:, 0].sigmoid(), batch[1]))
                outcome = guard.step()
            incident = incident or outcome.incident
    return incident


@pytest.mark.parametrize("repeatable", [True, False])
def test_labels_that_a_cross_entropy_by_hand_multiplies_by_a_logarithm(repeatable: bool) -> None:
    """A smaller rate and a safe logarithm delay the failure as well: neither is called proven.

    In two lines the batch of the failed step stands in for the others.
    """
    incident = saturate(255.0, repeatable=repeatable, rate=0.5)
    assert incident is not None
    best = incident.causes[0]
    assert (best.slug, best.proven) == ("label_out_of_range", True)
    assert not any(cause.proven for cause in incident.causes[1:])
    assert best.evidence[0].text == "batch[1] reaches 255, and the loss multiplies it by a logarithm"
    shown = [evidence.text for evidence in best.evidence]
    assert ("with targets in [0, 1] updates on this batch are finite" in shown) is not repeatable


def test_a_logarithm_of_zero_with_good_labels_is_still_proven() -> None:
    incident = saturate(1.0, repeatable=True, rate=3000.0)
    assert incident is not None
    assert all(cause.slug != "label_out_of_range" for cause in incident.causes)
