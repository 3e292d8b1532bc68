"""The tests of the simulated device, in a process of their own: nothing else may run where it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from device import simulated

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 280


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_simulated_device(which: str) -> None:
    if reason := simulated.why_not():
        pytest.skip(reason)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", which]
    command.append(str(Path(__file__).parent))
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIMEOUT,
        env={**own, "NANTRAP_SIMULATED_DEVICE": "1"}, cwd=ROOT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(7200, func_only=True)
def test_the_whole_zoo_gets_the_answers_that_are_stored() -> None:
    if reason := simulated.why_not():
        pytest.skip(reason)
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-m", "device.zoo_on_device"], check=False, capture_output=True, text=True, timeout=7000,
        env={**os.environ, "PYTHONPATH": path}, cwd=ROOT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
