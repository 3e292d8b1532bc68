"""`audit` with an engine: the same report as without, whichever worker is faster, and though one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from nantrap.checkpoints.audit import audit
from nantrap.checkpoints.audit.auditing import AuditTeam
from nantrap.engines import Threads, engine_named
from nantrap.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six steps of a run: one with NaN, one cut, one that is no checkpoint."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for step in range(6):
        weight = torch.randn(50, 40, generator=torch.Generator().manual_seed(step))
        if step == 4:
            weight[3, 7] = float("nan")
        torch.save({"model": {"weight": weight}, "step": step}, runs / f"step_{step}.pt")
    cut = runs / "step_2.pt"
    cut.write_bytes(cut.read_bytes()[:3000])
    (runs / "step_5.pt").write_bytes(b"not a checkpoint")
    return runs


class Backwards:
    """Gives the results in the reverse order."""

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        done = [(number, function(item)) for number, item in enumerate(items)]
        yield from reversed(done)


def test_the_order_in_which_files_are_read_changes_nothing(folder: Path) -> None:
    expected = audit(folder).to_dict()
    assert [each["healthy"] for each in expected["checkpoints"]] == [True, True, False, True, False, False]
    for engine in (Backwards(), Threads(1), Threads(4)):
        assert audit(folder, engine=engine).to_dict() == expected
    assert audit(folder, engine=Backwards(), read_all=False).to_dict() == audit(folder, read_all=False).to_dict()


def test_ranks_and_an_engine_do_not_go_together(folder: Path) -> None:
    with pytest.raises(UsageError, match="several ranks share the files already"):
        audit(folder, engine=Threads(1), ranks=AuditTeam(0, 2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_of_two_workers_one_of_which_is_killed(folder: Path) -> None:
    ray = pytest.importorskip("ray")
    expected = audit(folder).to_dict()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        assert audit(folder, engine=engine_named("ray", workers=2)).to_dict() == expected
        killed = folder.parent / "killed"
        assert audit(folder, engine=Killing(engine_named("ray", workers=2), killed)).to_dict() == expected
        assert killed.exists()
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_the_command_starts_a_cluster_and_keeps_stdout_for_the_report(folder: Path) -> None:
    pytest.importorskip("ray")
    command = [sys.executable, "-m", "nantrap", "audit", str(folder), "--engine", "ray", "--workers", "2", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 1, ended.stderr
    assert json.loads(ended.stdout) == audit(folder).to_dict()


class Killing:
    """Hands over a function that kills the worker it runs in, once."""

    def __init__(self, engine: Any, mark: Path) -> None:
        self._engine, self._mark = engine, mark

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        mark = str(self._mark)

        def deadly(item: Any) -> Any:
            if not os.path.exists(mark):
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(item)

        yield from self._engine.run(deadly, items)
