"""Batches far outside the range of the batches before them, and healthy data that must not be called so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nantrap import BatchChecks, Guard, Policy
from nantrap.errors import UsageError
from nantrap.incident import Action
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.record import open_run

Data = Callable[[int, torch.Generator], Tensor]


def train(policy: Policy, data: Data, *, form: str = "attempt", steps: int = 14, **options: Any) -> Guard:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    guard = Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-3), policy=policy, max_grad_norm=1.0, **options)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = data(step, generator)
        if form == "attempt":
            guard.attempt(lambda batch: model(batch["image"].nan_to_num(0, 0, 0)).square().mean(), {"image": x})
        else:
            guard.backward(model(x.nan_to_num(0, 0, 0)).square().mean())
            guard.step()
    guard.close()
    return guard


def pixels(step: int, generator: torch.Generator) -> Tensor:
    x = torch.rand(6, 4, generator=generator)
    return x * 255 if step == 11 else x


def one_value(step: int, generator: torch.Generator) -> Tensor:
    x = torch.rand(6, 4, generator=generator)
    if step == 11:
        x[3, 1] = -1e25
    return x


@pytest.mark.parametrize(("form", "name"), [("attempt", "image"), ("two_line", "input")])
@pytest.mark.parametrize(("data", "which"), [(pixels, "samples 0, 1, 2 and 3 more"), (one_value, "sample 3")])
def test_a_batch_far_outside_is_reported(
    form: str, name: str, data: Data, which: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    guard = train(Policy(batches=BatchChecks(unusual="warn")), data, form=form, run_dir=tmp_path)
    said = capsys.readouterr().err
    assert f"nantrap: step 11: the batch is far outside its range: {name} reaches " in said
    assert f" in {which}; 0.0" in said
    assert "in the 11 batches before" in said
    assert guard.tally.applied == 14
    assert guard.tally.outside == 1
    assert "1 step with a batch outside its usual range" in said
    lines = (tmp_path / "journal-r0.jsonl").read_text(encoding="utf-8").splitlines()
    assert [i for i, line in enumerate(lines) if '"outside"' in line] == [11]
    assert len(open_run(tmp_path).series[0]["loss"].value) == 14


@pytest.mark.parametrize("form", ["attempt", "two_line"])
def test_or_its_step_is_skipped(form: str) -> None:
    guard = train(Policy(batches=BatchChecks(unusual="skip")), one_value, form=form, quiet=True)
    assert guard.tally.applied == 13
    incident = guard.last_incident
    assert incident is not None
    assert (incident.step, incident.action, incident.phase) == (11, Action.SKIP, "data")
    assert incident.restored is True
    assert incident.samples == (3,)
    assert incident.cause is not None
    assert incident.cause.slug == "input_out_of_scale"
    assert incident.cause.fix is not None
    assert "check the range of" in incident.cause.fix.words


def test_a_known_range_is_checked_from_the_first_batch(capsys: pytest.CaptureFixture[str]) -> None:
    train(
        Policy(batches=BatchChecks(ranges={"im*": (0, 1)})),
        lambda step, g: torch.rand(6, 4, generator=g) + step,
        steps=2,
    )
    said = capsys.readouterr().err
    assert "step 1: the batch is far outside its range: image reaches 1." in said
    assert "the given range is 0 to 1" in said
    assert "step 0:" not in said


def test_a_new_level_is_accepted_after_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    def other_data(step: int, generator: torch.Generator) -> Tensor:
        return torch.rand(6, 4, generator=generator) * (1 if step < 10 else 1000)

    guard = train(Policy(batches=BatchChecks(unusual="warn")), other_data, steps=30)
    assert guard.tally.outside == 6
    assert "further ones are only counted" in capsys.readouterr().err
    skipped = train(Policy(batches=BatchChecks(unusual="skip")), other_data, steps=30, quiet=True)
    assert skipped.tally.attempted - skipped.tally.applied == 5


def _masks(step: int, generator: torch.Generator) -> Tensor:
    mask = torch.zeros(6, 4)
    if step > 9:
        mask[0, 0] = torch.finfo(torch.float32).min
    return mask


HEALTHY: dict[str, Data] = {
    "gaussian": lambda step, g: torch.randn(6, 4, generator=g),
    "log-normal": lambda step, g: (2.5 * torch.randn(6, 4, generator=g)).exp(),
    "cauchy": lambda step, g: torch.empty(6, 4).cauchy_(generator=g),
    "counts": lambda step, g: torch.empty(6, 4).geometric_(0.01, generator=g),
    "a mask that is filled later": _masks,
    "weights of one, later zeros": lambda step, g: torch.ones(6, 4) * (step < 10),
    "infinite and missing values": lambda step, g: torch.tensor([[1.0, float("inf")], [float("nan"), 2.0]]).repeat(
        3, 2
    ),
    "a slow growth": lambda step, g: torch.rand(6, 4, generator=g) * 1.1**step,
    "a batch of zeros now and then": lambda step, g: torch.rand(6, 4, generator=g) * (step % 5 > 0),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_data_are_left_alone(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    guard = train(Policy(batches=BatchChecks(unusual="warn")), HEALTHY[kind], steps=120)
    assert guard.tally.outside == 0, capsys.readouterr().err


@pytest.mark.parametrize(("mode", "applied"), [("warn", 14), ("skip", 13)])
def test_under_nantrap_run(mode: str, applied: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    with attached(RunSettings(run_dir=str(tmp_path), batch_range=mode)):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for step in range(14):
            optimizer.zero_grad()
            model(pixels(step, torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
    assert "the batch is far outside its range: input reaches" in capsys.readouterr().err
    assert open_run(tmp_path).series[0].applied.sum() == applied


def test_wrong_ranges_are_refused() -> None:
    for wrong, words in (
        ({"x": (1, 0)}, "the first number is the lower one"),
        ({"x": 3}, "expected two numbers"),
        ([1, 2], "expected a dict"),
    ):
        with pytest.raises(UsageError, match=words):
            Policy(batches=BatchChecks(ranges=wrong))  # type: ignore[arg-type]
