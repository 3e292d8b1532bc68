"""Calls of a guarded model without gradients: a bad value is an incident of its own, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident


class Log(nn.Module):
    """The logarithm of a linear function of the first feature: NaN for a sample that is negative there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Its output."""
        return self.linear(x) * torch.log(x[:, :1])


class Writes(Log):
    """Writes what it is told where the first feature is negative: a value of the program's own."""

    value = torch.nan

    def forward(self, x: Tensor) -> Tensor:
        """Its output."""
        return self.linear(x).masked_fill(x[:, :1] < 0, self.value)


class WritesInf(Writes):
    """The same with a mask of +Inf."""

    value = torch.inf


class WritesMinusInf(Writes):
    """The same with a mask of -Inf."""

    value = -torch.inf


class Draws(nn.Module):
    """Draws random numbers in every call, in eval mode as well."""

    def forward(self, x: Tensor) -> Tensor:
        """With noise."""
        return x + 0.1 * torch.randn_like(x)


def batch(bad: int | None = 2) -> Tensor:
    x = torch.rand(5, 4) + 0.1
    if bad is not None:
        x[bad, 0] = -1.0
    return x


def guarded(model: nn.Module, folder: Path) -> nantrap.Guard:
    torch.manual_seed(0)
    return nantrap.Guard(model, torch.optim.SGD(model.parameters(), 0.1), run_dir=folder, quiet=True)


def bad_rows(output: Tensor) -> list[int]:
    """In a function of its own: a test that asks in the function that calls the model handles NaN."""
    return [row for row, values in enumerate(output.tolist()) if any(value != value for value in values)]


def incidents(folder: Path) -> list[Incident]:
    found = sorted((folder / "incidents").glob("*/incident.json"))
    return [Incident.from_dict(json.loads(path.read_text())) for path in found]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_bad_sample_of_a_validation(tmp_path: Path, mode: Callable[[], Any]) -> None:
    model = Log()
    with guarded(model, tmp_path), mode():
        model(batch(None))
        given = model(batch())
    (incident,) = incidents(tmp_path)
    assert bad_rows(given) == [2]
    assert (incident.during, incident.action, incident.phase) == ("evaluation", "apply", "forward")
    assert (incident.op, incident.samples) == ("aten.log", (2,))
    assert incident.source is not None
    assert incident.source.text.strip() == "return self.linear(x) * torch.log(x[:, :1])"
    assert [cause.slug for cause in incident.causes][:1] == ["domain_error"]
    assert incident.causes[0].proven
    assert "the call is finite" in " ".join(each.text for each in incident.causes[0].evidence)
    assert "it was call 2 of the model without gradients" in incident.notes


def test_it_belongs_to_no_step(tmp_path: Path) -> None:
    model = Log()
    with guarded(model, tmp_path) as guard:
        for _ in range(3):
            guard.backward(model(batch(None)).pow(2).mean())
            guard.step()
            with torch.no_grad():
                model(batch())
        summary = guard.summary()
    assert "3 steps, 3 applied (100.0 %)" in summary
    assert "3 incidents in evaluations: 3 × domain_error" in summary
    run = nantrap.record.open_run(tmp_path)
    tally = run.tally()
    assert (tally.attempted, tally.applied, tally.incidents) == (3, 3, 0)
    assert tally.evaluations == {"domain_error": 3}


def test_nothing_of_the_run_changes(tmp_path: Path) -> None:
    """Weights, outputs and random numbers are those of a run without a guard, bit for bit."""

    def trained(guard: bool) -> tuple[Tensor, list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(Log(), Draws(), nn.Linear(3, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        made = nantrap.Guard(model, optimizer, run_dir=tmp_path, quiet=True) if guard else None
        outputs = []
        for step in range(4):
            loss = model(batch(None)).pow(2).mean()
            if made is None:
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            else:
                made.backward(loss)
                made.step()
            model.eval()
            with torch.no_grad():
                outputs.append(model(batch(2 if step % 2 else None)))
            model.train()
        if made is not None:
            made.close()
        return torch.cat([p.detach().flatten() for p in model.parameters()]), outputs, torch.rand(3)

    plain, guarded_run = trained(guard=False), trained(guard=True)
    assert len(incidents(tmp_path)) >= 1
    assert torch.equal(plain[0], guarded_run[0])
    assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(plain[1], guarded_run[1], strict=True))
    assert torch.equal(plain[2], guarded_run[2])


@pytest.mark.parametrize("model", [Writes, WritesInf, WritesMinusInf])
def test_what_the_program_writes_itself_is_no_incident(tmp_path: Path, model: type[nn.Module]) -> None:
    made = model()
    with guarded(made, tmp_path), torch.no_grad():
        assert sum(map(abs, made(batch()).flatten().tolist())) not in range(10_000)
    assert incidents(tmp_path) == []


def test_nan_that_the_program_handles_is_no_incident(tmp_path: Path) -> None:
    model = Log()
    with guarded(model, tmp_path) as guard:
        with torch.no_grad():
            output = model(batch())
            mean = torch.nanmean(output)
            rows = []
            for _ in range(2):
                row = model(batch()).mean(1)
                rows.append(row.numpy())
            also = np.nanmean(np.stack(rows))
            if torch.isnan(second := model(batch())).any():
                second = torch.zeros(())
        notes = guard.summary()
    assert np.isfinite([mean.item(), also, second.item()]).all()
    assert incidents(tmp_path) == []
    assert "incident in evaluations" not in notes


def test_another_value_that_is_tested_is_not_this_one(tmp_path: Path) -> None:
    model = Log()
    with guarded(model, tmp_path), torch.no_grad():
        loss = torch.ones(())
        output = model(batch())
        assert not torch.isnan(loss)
        del output
    assert len(incidents(tmp_path)) == 1


def test_many_bad_calls_are_counted(tmp_path: Path) -> None:
    model = Log()
    with guarded(model, tmp_path), torch.no_grad():
        for _ in range(12):
            model(batch())
    assert len(incidents(tmp_path)) == 3
    assert nantrap.record.open_run(tmp_path).tally().evaluations == {"domain_error": 12}


class Cached(nn.Module):
    """Keeps what it was given in a list that the caller holds, as a generation does: at the fourth token it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: dict[str, list[Tensor]]) -> Tensor:
        """The next state."""
        cache["states"].append(self.linear(x))
        return torch.sqrt(torch.tensor(3.5 - len(cache["states"]))) * cache["states"][-1]


def test_a_call_that_changes_its_arguments_begins_where_it_began(tmp_path: Path) -> None:
    model = Cached()
    cache: dict[str, list[Tensor]] = {"states": []}
    with guarded(model, tmp_path), torch.no_grad():
        for _ in range(4):
            model(torch.ones(2, 4), cache)
    (incident,) = incidents(tmp_path)
    assert incident.op == "aten.sqrt"
    assert "it was call 4 of the model without gradients" in incident.notes
    assert len(cache["states"]) == 4
