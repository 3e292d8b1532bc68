"""What a script loads is compared with what it configured, once, before the first step after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary
from nantrap.record import open_run


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()


def test_a_restored_learning_rate_that_overrides_the_configured_one_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = nn.Linear(3, 2)
    saved = torch.optim.AdamW(old.parameters(), lr=4.92e-4)
    step(old, saved)
    with attached(RunSettings(run_dir=str(tmp_path))):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        optimizer.load_state_dict(saved.state_dict())
        step(model, optimizer)
        step(model, optimizer)
    err = capsys.readouterr().err
    words = (
        "nantrap: resume: the learning rate is 0.000492, the configuration says 0.0001: "
        "the restored optimizer state overrides it"
    )
    assert err.count(words) == 1


def test_the_learning_rate_of_a_schedule_is_no_surprise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer, OneCycleLR]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, OneCycleLR(optimizer, max_lr=1e-3, total_steps=20)

    model, optimizer, scheduler = made()
    for _ in range(5):
        step(model, optimizer)
        scheduler.step()
    states = optimizer.state_dict(), scheduler.state_dict()
    with attached(RunSettings(run_dir=str(tmp_path))):
        model, optimizer, scheduler = made()
        optimizer.load_state_dict(states[0])
        scheduler.load_state_dict(states[1])
        step(model, optimizer)
    assert "resume:" not in capsys.readouterr().err


def test_a_poisoned_state_is_named_when_it_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = nn.Linear(3, 2).state_dict()
    bad["weight"][0, 0] = float("nan")
    with attached(RunSettings(run_dir=str(tmp_path))):
        nn.Linear(3, 2).load_state_dict(bad)
    assert (
        "nantrap: resume: the state that was loaded into Linear is not finite: weight; "
        "`nantrap audit` finds the last good checkpoint" in capsys.readouterr().err
    )


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "journal-r0.jsonl").read_text().splitlines()]


def test_the_message_names_the_flag_and_the_flag_puts_the_configured_rate_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = nn.Linear(3, 2)
    saved = torch.optim.AdamW(old.parameters(), lr=4.92e-4)
    step(old, saved)
    rates = []
    for choice in ("restored", "configured"):
        with attached(RunSettings(run_dir=str(tmp_path / choice), resume_lr=choice)):
            model = nn.Linear(3, 2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
            optimizer.load_state_dict(saved.state_dict())
            step(model, optimizer)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [4.92e-4, pytest.approx(1e-4)]
    first, second = capsys.readouterr().err.split("nantrap: resume: ")[1:]
    assert "help: start it with `nantrap run --resume-lr configured` to set the configured learning rate" in first
    assert "check_resume" not in first
    assert "The configured learning rate was set: it is 0.0001 now" in second


@pytest.mark.parametrize("scaled", [False, True])
def test_a_resumed_script_goes_on_at_its_real_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scaled: bool
) -> None:
    """Its own counter tells: the state of AdamW holds how many steps were made."""
    states: list[Any] = []
    for start in range(2):
        with attached(RunSettings(run_dir=str(tmp_path))) as attachment:
            model = nn.Linear(3, 2)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            if start:
                optimizer.load_state_dict(states[0])
            for number in range(5):
                optimizer.zero_grad()
                scaler = torch.amp.GradScaler("cpu", enabled=scaled)
                bad = number == (3 if start else 2)
                scaler.scale(model(torch.full((4, 3), torch.nan if bad else 1.0)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            states.append(optimizer.state_dict())
            summary = RunSummary.of(attachment)
    assert "nantrap: the script resumes at step 4\n" in capsys.readouterr().err
    found = lines(tmp_path)
    assert [line["step"] for line in found if "action" in line] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
    marks = [(line["kind"], line["step"]) for line in found if line.get("kind") in ("run_starts", "run_resumes")]
    assert marks == [("run_starts", 0), ("run_resumes", 4)]
    assert [Path(path).name for path in summary.reports] == ["000007-r0"], "of this run alone"


def test_a_folder_that_is_used_again_has_a_mark_and_only_the_new_incidents(tmp_path: Path) -> None:
    for _ in range(2):
        with attached(RunSettings(run_dir=str(tmp_path))) as attachment:
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for number in range(4):
                optimizer.zero_grad()
                model(torch.full((4, 3), torch.nan if number == 2 else 1.0)).sum().backward()
                optimizer.step()
            summary = RunSummary.of(attachment)
    assert [Path(path).name for path in summary.reports] == ["000002-r0-2"]
    kinds = [line.get("kind", line["step"]) for line in lines(tmp_path)]
    assert kinds == [0, 1, "incident_begins", 2, 3, "run_ends", "run_starts", 0, 1, "incident_begins", 2, 3, "run_ends"]
    run = open_run(tmp_path)
    assert [(each.first_step, each.last_step) for each in run.main.segments] == [(0, 3), (0, 3)]
    assert [(mark.event, mark.row) for mark in run.marks if mark.event == "run_starts"] == [("run_starts", 4)]


def test_a_guard_marks_its_resume_as_well(tmp_path: Path) -> None:
    for start in range(2):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with nantrap.Guard(model, optimizer, run_dir=tmp_path, save_every=2, quiet=True) as guard:
            if start:
                guard.load()
            for _ in range(2):
                guard.attempt(lambda x: model(x).sum(), torch.ones(4, 3))
    found = [(line.get("kind"), line["step"]) for line in lines(tmp_path)]
    steps = [(None, 0), (None, 1), ("run_ends", 2), ("run_starts", 0), ("run_resumes", 2), (None, 2), (None, 3)]
    assert found == [*steps, ("run_ends", 4)]


@pytest.mark.parametrize("take", ["restored", "configured"])
def test_a_script_that_sets_its_learning_rate_in_each_iteration_decides_itself(
    take: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a state restores is overwritten before the first step, also where the script sets the same number."""
    rates = [float(f"{rate}e-3") for rate in (5, 4, 3, 2)]
    old = nn.Linear(3, 2)
    saved = torch.optim.AdamW(old.parameters(), lr=1e-2)
    saved.param_groups[0]["lr"] = rates[0]
    step(old, saved)
    with attached(RunSettings(run_dir=str(tmp_path), resume_lr=take)):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.save(saved.state_dict(), tmp_path / "state.pt")
        optimizer.load_state_dict(torch.load(tmp_path / "state.pt"))
        for rate in rates:
            optimizer.param_groups[0]["lr"] = rate
            step(model, optimizer)
            assert optimizer.param_groups[0]["lr"] == rate
    assert "the learning rate is" not in capsys.readouterr().err
    lines = (tmp_path / "journal-r0.jsonl").read_text().splitlines()
    assert [line["lr"] for each in lines if "action" in (line := json.loads(each))] == [[rate] for rate in rates]
