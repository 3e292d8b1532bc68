"""Importing nantrap imports no torch: a report opens on a laptop in the time Python takes to start."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loads_torch(code: str) -> bool:
    check = f"import sys\n{code}\nsys.exit(3 if 'torch' in sys.modules else 0)"
    status = subprocess.run([sys.executable, "-c", check], check=False, timeout=120).returncode
    assert status in (0, 3)
    return status == 3


@pytest.mark.parametrize(
    "code",
    [
        "import nantrap",
        "import nantrap; nantrap.Incident(step=1).to_dict(); nantrap.UsageError",
        "from nantrap import Incident, Cause, NonFiniteError; Cause('log_of_zero').title",
        "from nantrap.record import open_run, Journal",
        "from nantrap.report import render_incident",
    ],
)
def test_no_torch(code: str) -> None:
    assert not loads_torch(code)


def test_this_test_can_fail() -> None:
    assert loads_torch("import nantrap; nantrap.Guard")


def test_folders_are_reached_through_the_package() -> None:
    """As the documentation writes it: `nantrap.checkpoints.finite_gate` after `import nantrap` alone."""
    code = "import nantrap; print(nantrap.checkpoints.finite_gate.__name__, nantrap.record.open_run.__name__)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["finite_gate", "open_run"]
