"""Stores what a benchmark measured, from which `python -m zoo.tables` writes the tables of docs/benchmarks.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
from zoo.results import BENCHMARKS, save_parts  # noqa: E402


def save(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Store parts of a benchmark with the command that was given, and return all that are stored now."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    return save_parts(BENCHMARKS / f"{name}.json", found, command)
