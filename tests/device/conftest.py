"""Every test here runs with the simulated device, and is skipped where there can be none.

A process that has the device has an accelerator for all that runs in it, so these tests have a process of their own:
`test_own_process.py` starts it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from device import simulated

IN_OWN_PROCESS = os.environ.get("NANTRAP_SIMULATED_DEVICE") == "1"
collect_ignore = (
    ["test_own_process.py"]
    if IN_OWN_PROCESS
    else [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_own_process.py"]
)


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    if not IN_OWN_PROCESS:
        return
    reason = simulated.why_not()
    if reason:
        pytest.skip(reason)
    simulated.start()


@pytest.fixture(autouse=True)
def _fresh_counters(_device: None) -> Iterator[None]:
    if not IN_OWN_PROCESS:
        yield
        return
    torch.ops.sim.reset()
    yield
    torch.ops.sim.set_dry(False)
    torch.ops.sim.set_capacity(0, 80 * 2**30)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The limit of time is that of a test itself: the first one of all waits for the compiler."""
    here = str(Path(__file__).parent)
    elsewhere = pytest.mark.skip(reason="runs in a process of its own: test_own_process.py")
    for item in items:
        if str(item.path).startswith(here):
            if not IN_OWN_PROCESS and item.path.name != "test_own_process.py":  # named on the command line
                item.add_marker(elsewhere)
            item.add_marker(pytest.mark.timeout(300, func_only=True))
