"""The tests of the simulated device, in a process of their own: nothing else may run where it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from device import simulated

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
        env={**own, "NANTRAP_SIMULATED_DEVICE": "1"}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
