"""Results of benchmarks on disk, from which `python -m zoo.tables` writes the tables of docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
from zoo.results import setting  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def read(name: str) -> dict[str, Any]:
    """The stored results of a benchmark; nothing if it was never stored."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def save(name: str, found: dict[str, Any]) -> None:
    """Store what was measured, each part with its date, machine and command; parts that were not measured now stay."""
    RESULTS.mkdir(exist_ok=True)
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    measured = {part: {"found": value, **setting(["nantrap"], command)} for part, value in found.items()}
    text = json.dumps({**read(name), **measured}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
