"""A plugin for pytest: the tests of other folders on the simulated device, unchanged.

    PYTHONPATH=tests python -m pytest -p device.default_device tests/guard tests/locate tests/causes

The device is PyTorch's default from the first import on, so that what a test makes is made there. A test that launched
nothing on the device said nothing about it, and is counted apart. `sync="auto"` reads late there, as on a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from device import simulated

_COUNTS: Counter[str] = Counter()


def pytest_configure() -> None:
    """Make the device before the first test module is imported: some make their tensors at import."""
    reason = simulated.why_not()
    if reason:
        pytest.exit(reason, 2)
    simulated.start()
    torch.set_default_device("sim")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Count the tests that use the device."""
    before = simulated.counts().kernels
    try:
        return (yield)
    finally:
        _COUNTS["on the device" if simulated.counts().kernels > before else "not on the device"] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many tests used the device."""
    terminalreporter.write_line(", ".join(f"{count} {where}" for where, count in sorted(_COUNTS.items())))
