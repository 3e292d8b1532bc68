"""Updates, optimizer state and buffers that go wrong on one rank or on both, in each way to train one model together.

An update is made after the gradients were averaged, and a buffer takes no part in them: nothing but the guards' own
exchange can tell the other ranks.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.ranks import ways
from nantrap import Policy
from ranked import Ranks, run_scenarios
from sharding import RUNS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")
PLAN: dict[int, tuple[str, tuple[int, ...]]] = {
    2: ("update", (1,)),
    3: ("buffer", (1,)),
    4: ("update", (0,)),
    5: ("buffer", (0,)),
    6: ("update", (0, 1)),
    7: ("buffer", (0, 1)),
}
STEPS = 9
SPOILED = 4
"""The step before which something writes NaN into the optimizer's memory on rank 1."""


def loss_of(parts: ways.Together, batch: tuple[Tensor, Tensor], *, spoils: bool) -> Tensor:
    """The loss of a micro-batch; the forward pass may spoil a buffer on its way."""

    def spoil(module: Any, _: Any, __: Any) -> None:
        with torch.no_grad():
            module.energy.fill_(ways.NAN)

    hook = parts.inner.register_forward_hook(spoil) if spoils else None
    try:
        output = parts.model(batch[0])
    finally:  # a replay may end early
        if hook is not None:
            hook.remove()
    return nn.functional.mse_loss(output, batch[1]) / parts.micros


def _train(
    rank: int, folder: str, *, way: str, form: str = "two_lines", diagnose: str = "off", spoils_memory: bool = False
) -> dict[str, Any]:
    """Nine steps, six of which are bad; or healthy ones before one of which the optimizer's memory is spoiled."""
    parts = ways.build(way, faulty=not spoils_memory)
    policy = Policy(diagnose=diagnose, max_consecutive_skips=STEPS)  # type: ignore[arg-type]
    guard = nantrap.Guard(parts.model, parts.optimizer, policy=policy, process_group=parts.group, run_dir=folder)
    made: dict[str, Any] = {"actions": [], "origins": [], "bad": [], "phases": []}
    for step in range(STEPS):
        fault, hit = PLAN.get(step, ("", ())) if not spoils_memory else ("", ())
        ways.Faulty.goes_wrong = fault == "update" and rank in hit
        spoils = fault == "buffer" and rank in hit
        if spoils_memory and step == SPOILED and rank == 1:
            ways.local(next(iter(parts.owner.state.values()))["exp_avg"]).view(-1)[0] = ways.NAN
        batches = [ways.batch_of(way, rank, step, micro) for micro in range(parts.micros)]
        if form == "attempt":
            outcome = guard.attempt(functools.partial(loss_of, parts, spoils=spoils), *batches)
        else:
            for micro, batch in enumerate(batches):
                with parts.quiet(micro):
                    guard.backward(loss_of(parts, batch, spoils=spoils))
            parts.average()
            outcome = guard.step()
        incident = outcome.incident
        made["actions"].append(str(outcome.action))
        made["origins"].append(incident.origin_rank if incident else None)
        made["bad"].append(list(incident.bad_ranks) if incident else None)
        made["phases"].append(incident.phase if incident else None)
    guard.close()
    ways.Faulty.goes_wrong = False
    return made | _end_of(parts)


def _plain(rank: int, folder: str, *, way: str) -> dict[str, Any]:
    """The same loop without a guard, and without the steps that go wrong."""
    parts = ways.build(way)
    for step in set(range(STEPS)) - set(PLAN):
        for micro in range(parts.micros):
            with parts.quiet(micro):
                loss_of(parts, ways.batch_of(way, rank, step, micro), spoils=False).backward()
        parts.average()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
    return _end_of(parts)


def _end_of(parts: ways.Together) -> dict[str, Any]:
    state = [ways.whole(value) for value in parts.inner.state_dict().values()]
    memory = [value for entry in parts.owner.state.values() for value in entry.values() if isinstance(value, Tensor)]
    return {
        "parameters": ways.bits(parts.inner),
        "buffers": [value.tolist() for value in parts.inner.buffers()],
        "memory": [float(ways.local(value).double().sum()) for value in memory],
        "finite": all(bool(value.isfinite().all()) for value in state),
    }


def _run(rank: int, folder: str, *, plain: bool = False, **options: Any) -> dict[str, Any]:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        result = _plain(rank, folder, **options) if plain else _train(rank, folder, **options)
    return result | {"said": said.getvalue()}


USED = tuple(way for way in ways.WAYS if RUNS or way != "sharded")
ALONE = tuple(way for way in USED if way not in ("no_sync", "manual"))
"""The ways in which one function computes the whole step."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    scenarios: dict[str, dict[str, Any]] = {}
    for way in USED:
        scenarios[way] = {"way": way}
        scenarios[f"{way}-plain"] = {"way": way, "plain": True}
        scenarios[f"{way}-memory"] = {"way": way, "spoils_memory": True}
    return run_scenarios(_run, scenarios, tmp_path_factory.mktemp("ways"))


def check(ranks: Ranks, name: str, plain: str) -> None:
    """Each bad step is refused by both ranks, which name where it began and end like a run without these steps."""
    zero, one = ranks(name)
    assert zero["actions"] == one["actions"] == ["skip" if step in PLAN else "apply" for step in range(STEPS)]
    guilty = [list(PLAN[step][1]) if step in PLAN else None for step in range(STEPS)]
    assert zero["bad"] == one["bad"] == guilty
    assert zero["origins"] == one["origins"] == [hit[0] if hit else None for hit in guilty]
    phases = [
        {"update": "optimizer", "buffer": "forward"}[PLAN[step][0]] if step in PLAN else None for step in range(9)
    ]
    assert zero["phases"] == one["phases"]
    # a diagnosis finds the line that overwrites a weight or a buffer, and calls it a fault of the state
    found = {(phase, wanted) for phase, wanted in zip(zero["phases"], phases, strict=True) if phase != wanted}
    assert found <= {("state", "optimizer"), ("state", "forward")}
    for guarded, left_out in zip((zero, one), ranks(plain), strict=True):
        assert guarded["finite"]
        for part in ("parameters", "buffers", "memory"):
            assert guarded[part] == left_out[part], part
    assert zero["parameters"] == one["parameters"]


@pytest.mark.parametrize("way", USED)
def test_updates_and_buffers_that_go_wrong(ranks: Ranks, way: str) -> None:
    check(ranks, way, f"{way}-plain")


@pytest.mark.parametrize("way", USED)
def test_a_spoiled_memory_of_one_rank_is_rolled_back_by_all(ranks: Ranks, way: str) -> None:
    zero, one = ranks(f"{way}-memory")
    expected = ["rollback" if step == SPOILED else "apply" for step in range(STEPS)]
    assert zero["actions"] == one["actions"] == expected
    assert zero["bad"][SPOILED] == one["bad"][SPOILED] == [1]
    assert "on rank 1 the optimizer's state is non-finite, which skipping does not repair" in zero["said"]
    assert one["said"] == "", "the first rank prints what all of them know"
    assert zero["finite"]
    assert one["finite"]
    assert zero["parameters"] == one["parameters"]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    scenarios: dict[str, dict[str, Any]] = {}
    for way in USED:
        scenarios[f"{way}-plain"] = {"way": way, "plain": True}
        scenarios[f"{way}-two_lines"] = {"way": way, "diagnose": "full"}
        if way in ALONE:
            scenarios[f"{way}-attempt"] = {"way": way, "diagnose": "full", "form": "attempt"}
    return run_scenarios(_run, scenarios, tmp_path_factory.mktemp("diagnosed"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["two_lines", "attempt"])
@pytest.mark.parametrize("way", USED)
def test_with_a_full_diagnosis(diagnosed: Ranks, way: str, form: str) -> None:
    """A diagnosis runs the step again, on one rank or on all of them, and leaves everything as it was."""
    if form == "two_lines" or way in ALONE:
        check(diagnosed, f"{way}-{form}", f"{way}-plain")
