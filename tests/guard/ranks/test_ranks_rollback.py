"""Ranks roll back to one state: the newest that is whole on all of them.

Something writes NaN on one rank right before, at or after a step in which the ranks keep an anchor. The anchor of that
rank is then worthless while the others' is whole.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import nantrap
from guard.ranks import ways
from guard.ranks.test_ranks_ways import loss_of
from nantrap import Policy, Rollback
from ranked import Ranks, run_scenarios, start
from ranked import join as join_group
from sharding import RUNS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file")
EVERY = 3
STEPS = 12
WAYS = tuple(way for way in ("ddp", "sharded", "zero", "manual") if RUNS or way != "sharded")
KINDS = ("memory", "weight", "buffer")
OFFSETS = range(EVERY)


def _spoil(parts: ways.Together, kind: str) -> None:
    """What a fault of one rank's memory, or a script of that rank, writes."""
    with torch.no_grad():
        if kind == "memory":
            ways.local(next(iter(parts.owner.state.values()))["exp_avg"]).view(-1)[0] = ways.NAN
        elif kind == "weight":
            ways.local(next(p for p in parts.inner.parameters() if ways.local(p).numel())).view(-1)[0] = ways.NAN
        else:
            parts.inner.norm.running_mean[0] = ways.NAN  # type: ignore[index]


def _train(
    rank: int, folder: str, *, way: str, kind: str, offset: int, form: str = "two_lines", hit: int = 1
) -> dict[str, Any]:
    parts = ways.build(way, faulty=False)
    policy = Policy(diagnose="off", max_consecutive_skips=1, rollback=Rollback(anchor_every=EVERY))
    made: dict[str, Any] = {"actions": [], "restored": [], "stopped": ""}
    with contextlib.redirect_stderr(io.StringIO()) as said:
        guard = nantrap.Guard(parts.model, parts.optimizer, policy=policy, process_group=parts.group, run_dir=folder)
        for step in range(STEPS):
            if rank == hit and step == 2 * EVERY + offset:
                _spoil(parts, kind)
            batch = ways.batch_of(way, rank, step, 0)
            try:
                if form == "attempt":
                    outcome = guard.attempt(functools.partial(loss_of, parts, spoils=False), batch)
                else:
                    guard.backward(loss_of(parts, batch, spoils=False))
                    parts.average()
                    outcome = guard.step()
            except nantrap.NonFiniteError as error:
                made["stopped"] = str(error)
                break
            made["actions"].append(str(outcome.action))
            made["restored"].append(outcome.incident.restored_step if outcome.incident else None)
        guard.close()
    state = [ways.whole(value) for value in parts.inner.state_dict().values()]
    finite = all(bool(value.isfinite().all()) for value in state)
    return made | {"said": said.getvalue(), "parameters": ways.bits(parts.inner), "finite": finite}


def _scenarios() -> dict[str, dict[str, Any]]:
    return {
        f"{way}-{kind}-{offset}-{form}": {"way": way, "kind": kind, "offset": offset, "form": form}
        for way in WAYS
        for kind in KINDS
        for offset in OFFSETS
        for form in ("two_lines", "attempt")
        if form == "two_lines" or way != "manual"
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_scenarios(_train, _scenarios(), tmp_path_factory.mktemp("rollback"))


@pytest.mark.parametrize("name", _scenarios())
def test_all_ranks_restore_the_same_state(ranks: Ranks, name: str) -> None:
    results = ranks(name)
    first = results[0]
    assert not first["stopped"]
    for other in results:
        assert other["actions"] == first["actions"]
        assert other["restored"] == first["restored"]
        assert other["parameters"] == first["parameters"]
        assert other["finite"]
    assert "rollback" in first["actions"] or "buffer" in name


def _three(rank: int, folder: str) -> None:
    join_group(rank, folder, world=3)
    results = [
        _train(rank, f"{folder}/{kind}{offset}", way="ddp", kind=kind, offset=offset, hit=2)
        for kind in KINDS
        for offset in OFFSETS
    ]
    everybody: list[Any] = [None] * 3
    dist.all_gather_object(everybody, results)
    if rank == 0:
        equal = all(
            [r["actions"], r["restored"], r["parameters"]] == [f["actions"], f["restored"], f["parameters"]]
            for other in everybody
            for r, f in zip(other, everybody[0], strict=True)
        )
        Path(folder, "equal.txt").write_text(str(equal))
    dist.barrier()


def test_three_ranks(tmp_path: Path) -> None:
    start(_three, str(tmp_path), world=3)
    assert (tmp_path / "equal.txt").read_text() == "True"
