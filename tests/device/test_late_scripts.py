"""`nantrap run` and the adapters read late, too: the script makes its own calls, and no healthy step waits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from device.simulated import counted
from device.test_late_reads import (
    FIRST,
    PARTS,
    SOME_LOSSES,
    SOME_PARTS,
    UNHURRIED,
    in_two_parts,
    moved,
    plain_counts,
    run_on_device,
    told,
)
from guard.loops import INF, NAN, Run, assert_same_state, poison, state_of, train_plain
from nantrap import Policy
from nantrap.launch.attach import attached
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.settings import RunSettings


@contextlib.contextmanager
def attached_to(folder: Path, **policy: Any) -> Iterator[OptimizerRegistry]:
    settings = RunSettings(own_policy=Policy(**{"diagnosis": UNHURRIED, **policy}), run_dir=str(folder), quiet=True)
    with attached(settings) as attachment:
        attachment.enter_living()
        yield attachment.registry
        attachment.registry.end()


@pytest.mark.parametrize("parts", PARTS)
def test_a_healthy_step_waits_for_nothing_and_is_bit_identical(parts: str, tmp_path: Path) -> None:
    plain, run = run_on_device(**PARTS[parts]), run_on_device(**PARTS[parts])
    expected = plain_counts(plain)
    with attached_to(tmp_path) as registry:
        first, rest = in_two_parts(run)
        train_plain(run, first)
        with counted() as seen:
            train_plain(run, rest)
    assert seen[0].waits == expected.waits  # those of the script: it prints its loss
    assert_same_state(state_of(plain), state_of(run))
    (loop,) = registry
    assert loop.tally.applied == len(first) + len(rest)
    assert json.loads((tmp_path / "run.json").read_text())["read"] == "one step later"


@pytest.mark.parametrize("parts", SOME_PARTS)
def test_a_bad_step_never_happened(parts: str, tmp_path: Path) -> None:
    run, clean = run_on_device(**PARTS[parts]), run_on_device(**PARTS[parts])
    with attached_to(tmp_path, diagnose="locate") as registry:
        first, rest = in_two_parts(run)
        train_plain(run, first)
        train_plain(run, [(poison(run.batches[0], NAN), *rest[0][1:])])
        (loop,) = registry
        assert loop.last_incident is None  # the host does not know yet
        train_plain(run, [rest[0]])
        assert loop.last_incident is not None
        assert loop.last_incident.step == len(first)
    train_plain(clean, [*first, rest[0]])
    assert_same_state(state_of(clean), state_of(run))


def test_the_last_step_is_judged_when_the_script_evaluates_or_ends(tmp_path: Path) -> None:
    for name, end in (("evaluates", lambda run: run.model.eval()), ("ends", lambda run: None)):
        run = run_on_device()
        with attached_to(tmp_path / name, diagnose="off") as registry:
            first, _ = in_two_parts(run)
            train_plain(run, [*first, (poison(run.batches[0], INF),)])
            end(run)
            (loop,) = registry
            assert (loop.last_incident is None) is (name == "ends")
        assert loop.tally.incidents == 1


def train_script(run: Run[Any], windows: Any) -> None:
    """A loop as people write it: the loss can be computed again from these lines."""
    model, optimizer, compute = run.model, run.optimizer, run.loss
    for (batch,) in windows:
        loss = compute(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("loss", SOME_LOSSES)
def test_a_bad_step_is_diagnosed_as_if_it_had_been_read_at_once(loss: Any, tmp_path: Path) -> None:
    incidents = []
    for sync in ("step", "auto"):
        run = run_on_device(loss=loss)
        with attached_to(tmp_path / sync, sync=sync) as registry:
            first, rest = in_two_parts(run)
            empty = (torch.zeros_like(run.batches[0][0]), run.batches[0][1])
            train_script(run, [*first, (empty,), rest[0]])
            (loop,) = registry
        assert loop.tally.incidents == 1
        incidents.append(loop.last_incident)
    at_once, late = incidents
    assert at_once is not None
    assert at_once.causes[0].proven
    assert told(late) == told(at_once)


def test_a_scaler_that_lowers_its_scale_makes_no_incident(tmp_path: Path) -> None:
    """A gradient that overflows in float16 is the search of the scaler, which goes on as without a guard."""
    parts = {"scaler": lambda: torch.amp.GradScaler("sim", init_scale=2.0**10), "autocast": torch.float16}
    plain, run = run_on_device(**parts), run_on_device(**parts)

    def loud(batch: Any) -> Any:
        return (batch[0], batch[1] * 3e3)

    first, rest = in_two_parts(run)
    windows = [*first, (loud(rest[0][0]),), *rest]
    train_plain(plain, windows)
    with attached_to(tmp_path, diagnose="off") as registry:
        train_plain(run, windows)
    (loop,) = registry
    assert (loop.tally.scaler_probes, loop.tally.incidents) == (1, 0)
    assert_same_state(state_of(plain), state_of(run))


def test_two_optimizers_that_take_turns_are_read_at_once(tmp_path: Path) -> None:
    """Between a step and its reading the other one moves weights that the step depends on."""
    makes, judges = nn.Linear(6, 6).to("sim"), nn.Linear(6, 1).to("sim")
    one, other = (torch.optim.AdamW(module.parameters(), fused=True) for module in (makes, judges))
    batches = [moved((torch.randn(4, 6),))[0] for _ in range(FIRST + 4)]
    with attached_to(tmp_path, diagnose="off") as registry:
        for batch in batches:
            other.zero_grad()
            judges(makes(batch).detach()).mean().backward()
            other.step()
            one.zero_grad()
            judges(makes(batch)).square().mean().backward()
            one.step()
        assert registry.launched() is None
        assert all(loop.session.takes_turns for loop in registry)
    assert "take turns" in json.loads((tmp_path / "run.json").read_text())["read"]
