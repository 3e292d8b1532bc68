"""The guilty samples by bisection, whatever the batch looks like."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap import Diagnosis, Policy

SIZE = 6
values = torch.full((SIZE, 2), 0.5)
values[1] = values[4, 1] = 0.0
targets = torch.arange(SIZE)


@dataclass(frozen=True)
class Pair:
    x: Tensor
    y: Tensor
    name: str = "pair"


Named = namedtuple("Named", "x y")


@pytest.mark.parametrize(
    ("batch", "read"),
    [
        pytest.param(values, lambda b: b, id="tensor"),
        pytest.param((values, targets), lambda b: b[0], id="tuple"),
        pytest.param([values, targets], lambda b: b[0], id="list"),
        pytest.param({"x": values, "y": targets}, lambda b: b["x"], id="dict"),
        pytest.param(Pair(values, targets), lambda b: b.x, id="dataclass"),
        pytest.param(Named(values, targets), lambda b: b.x, id="namedtuple"),
        pytest.param({"in": {"x": [values, targets]}, "k": 3}, lambda b: b["in"]["x"][0], id="nested"),
        pytest.param([v.repeat(1 + i % 3) for i, v in enumerate(values)], torch.cat, id="ragged"),
        pytest.param([{"x": v} for v in values], lambda b: torch.stack([one["x"] for one in b]), id="list of dicts"),
        pytest.param(
            ([v.repeat(1 + i % 3) for i, v in enumerate(values)], targets),
            lambda b: torch.cat(b[0]),
            id="ragged and labels",
        ),
        pytest.param((values, torch.ones(3, 3)), lambda b: b[0], id="with a constant"),
    ],
)
def test_any_structure(batch: Any, read: Any, attempt: Any) -> None:
    model = nn.Linear(1, 1)

    def loss(b: Any) -> Tensor:
        return (read(b).log() * model.weight).mean()

    incident = attempt(model, loss, [batch])
    assert incident.samples == (1, 4)


def test_the_fault_needs_the_whole_batch(attempt: Any) -> None:
    model = nn.Linear(2, 2)

    def contrastive(batch: Tensor) -> Tensor:
        return model(batch).mean() / (batch.sum() - SIZE)  # zero only over all samples

    incident = attempt(model, contrastive, [torch.full((SIZE, 2), 0.5)])
    assert incident.samples == ()
    note = "each sample was run alone and none of them fails: it takes several of them together"
    assert note in incident.notes


def test_a_batch_in_which_every_sample_fails_names_none_of_them(attempt: Any) -> None:
    model = nn.Linear(2, 1)
    incident = attempt(model, lambda b: model(b.log()).mean(), [torch.zeros(64, 2)])
    assert incident.samples == ()
    assert "each of the 16 samples that were run alone fails, so no single one is the reason" in incident.notes


@pytest.mark.parametrize("bad", [range(8), range(10), [*range(8), *range(40, 48)]], ids=["eight", "ten", "two blocks"])
def test_the_first_samples_of_a_batch_may_be_the_guilty_ones(bad: Any, attempt: Any) -> None:
    model = nn.Linear(2, 1)
    batch = torch.full((64, 2), 0.5)
    batch[list(bad)] = 0.0
    incident = attempt(model, lambda b: model(b.log()).mean(), [batch])
    assert incident.samples == tuple(bad)
    assert not any("single one" in note for note in incident.notes)


def test_batch_norm_takes_no_single_sample(attempt: Any) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    batch = torch.randn(4, 2)
    batch[2] = 3e38
    incident = attempt(model, lambda b: model(b).mean(), [batch])
    assert incident is not None
    assert incident.samples == (2,), "found by leaving it out, since BatchNorm takes no single sample"


@pytest.mark.parametrize("key", ["index", "idx", "indices"])
def test_data_set_indices(key: str, attempt: Any) -> None:
    model = nn.Linear(1, 1)
    batch = {"x": values, key: torch.arange(100, 100 + SIZE)}
    incident = attempt(model, lambda b: (b["x"].log() * model.weight).mean(), [batch])
    assert incident.dataset_indices == (101, 104)


def test_the_two_line_form_searches_where_the_loss_can_be_computed_again(twoline: Any) -> None:
    model = nn.Linear(2, 1)
    incident = twoline(model, lambda b: model(b.log()).mean(), [values * torch.arange(1, 3)])
    assert (incident.phase, incident.module, incident.op) == ("forward", "loss", "aten.log")
    assert incident.samples == (1, 4)


def test_elsewhere_the_two_line_form_does_not_search(twoline: Any, graph_only: None) -> None:
    model = nn.Linear(2, 1)
    incident = twoline(model, lambda b: model(b.log()).mean(), [values * torch.arange(1, 3)])
    assert (incident.phase, incident.module) == ("data", "data")  # the model was given -Inf
    assert incident.samples == (1, 4)


def test_a_loss_that_draws_its_own_numbers_is_not_blamed_on_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        t = torch.randint(0, 40, (len(batch),)) / 40
        return (model(batch).squeeze(1) * torch.log(t).sin()).mean()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        found = [guard.attempt(loss, torch.randn(8, 4)).incident for _ in range(20)]
    incident = next(each for each in found if each is not None)
    words = "the step draws random numbers, and a part of the batch draws others: the sample cannot be found"
    assert words in incident.notes


@pytest.mark.parametrize("sizes", [(8, 9, 10, 8, 9), (8, 8, 8, 8, 8)])
@pytest.mark.parametrize("wrap", [lambda images: images, lambda images: {"images": images}])
def test_an_image_of_a_list_is_the_sample_and_not_its_channel(sizes: tuple[int, ...], wrap: Any) -> None:
    model = nn.Conv2d(3, 4, 3, padding=1)
    images = [torch.randn(3, size, 8) for size in sizes]
    images[4][1, 2, 3] = float("nan")

    def loss(batch: Any) -> Tensor:
        listed = batch["images"] if isinstance(batch, dict) else batch
        return torch.stack([model(image).mean() for image in listed]).mean()

    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(loss, wrap(images)).incident
    assert incident is not None
    assert incident.samples == (4,)
    assert "before the forward pass, sample 4" in incident.causes[0].evidence[0].text
    assert next(f for f in incident.findings if f.kind == "batch").samples == (4,)


def test_a_row_of_a_tensor_that_is_no_batch_of_samples_is_not_called_one() -> None:
    """Statistics of a dataset beside the batch: their rows are features."""
    model = nn.Linear(3, 1)
    batch = {"x": torch.randn(6, 3), "y": torch.randn(6), "scale": torch.tensor([1.0, float("nan"), 1.0])}
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(lambda b: (model(b["x"] * b["scale"])[:, 0] - b["y"]).mean(), batch).incident
    assert incident is not None
    assert incident.causes[0].evidence[0].text == "scale holds 1 NaN among 3 values before the forward pass"


def test_a_sample_that_fails_only_alone_is_not_named() -> None:
    """A smaller batch is rounded and weighted differently: a sample counts if it fails in the size of the batch."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), run_dir=None, quiet=True)
    batch = torch.ones(8, 1)
    batch[[1, 2, 6]], batch[[3, 7]] = 12.0, 100.0
    outcome = guard.attempt(lambda part: torch.exp(model(part) * 8 / len(part)).mean(), batch)
    assert outcome.incident is not None
    assert outcome.incident.samples == (3, 7)


def test_parts_of_the_batch_carry_the_scale_that_they_have_in_it() -> None:
    """A mean over fewer samples gives each a larger gradient, which overflows at the scale of the whole batch."""
    model = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(250.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    policy = nantrap.Policy(skips=nantrap.Skips(scaler_probes=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = nantrap.Guard(model, optimizer, scaler=scaler, run_dir=None, policy=policy, quiet=True)
    batch = torch.full((8, 4), 0.3)
    batch[5] = 3.0

    def loss(part: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(part)
        return out.float().square().mean()

    outcome = guard.attempt(loss, batch)
    assert outcome.incident is not None
    assert outcome.incident.samples == (5,)


def fails_above(limit: Callable[[Tensor], float], bad: dict[int, float]) -> nantrap.Incident:
    """The incident of a batch of 8 whose values above a limit that depends on the batch have no logarithm."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), run_dir=None, quiet=True)
    batch = torch.ones(8, 1)
    for row, value in bad.items():
        batch[row] = value
    outcome = guard.attempt(lambda part: (limit(part) - model(part)).log().mean(), batch)
    assert outcome.incident is not None
    return outcome.incident


def test_a_sample_whose_row_is_good_in_the_batch_is_not_named() -> None:
    """It fails alone, and in the batch as soon as another sample is replaced; there its row is good."""
    incident = fails_above(lambda part: 1.6 + 0.4 * float(part.max() > 2.2), {3: 2.5, 6: 1.7})
    assert incident.samples == (3,)


def test_a_sample_whose_row_is_bad_in_the_batch_is_named_though_it_is_finite_alone() -> None:
    incident = fails_above(lambda part: 2.0 - 0.08 * len(part), {3: 2.5, 6: 1.5})
    assert incident.samples == (3, 6)


def test_rows_that_the_values_show_are_tried_first(attempt: Any) -> None:
    model, calls = nn.Linear(1, 1), itertools.count()  # an iterator cannot be rewound, so it counts the replays too

    def loss(batch: Tensor) -> Tensor:
        next(calls)
        return (model(batch) * batch.log()).mean()

    batch = torch.ones(64, 1)
    batch[41, 0] = 0.0
    assert attempt(model, loss, [batch]).samples == (41,)
    assert next(calls) == 5  # the step, the replay, the whole batch, the row, the rest


def test_a_search_that_ends_early_blames_nobody_while_every_part_fails(attempt: Any) -> None:
    model, ticks = nn.Linear(1, 1), itertools.count()
    limits = Diagnosis(seconds=60, steps=1e9, clock=lambda: float(next(ticks)))
    policy = Policy(diagnosis=limits)
    incident = attempt(model, lambda batch: model(batch.log()).mean(), [torch.zeros(32, 1)], policy=policy)
    assert "the search for the samples was cut short by its budget" in incident.notes
    assert incident.samples == ()
