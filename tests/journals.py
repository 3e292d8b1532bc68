"""The lines of a journal as they are in the file, for tests of what writes it. `open_run` is the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nantrap.incident.codec import NONFINITE


def steps_in(run_dir: object, *, rank: int = 0) -> list[dict[str, Any]]:
    """The steps of one rank. Lines that are no steps are left out, and so is half a line."""
    text = Path(str(run_dir), f"journal-r{rank}.jsonl").read_text(encoding="utf-8", errors="replace")
    found = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record.get("kind", "step") == "step":
            found.append(_numbers(record))
    return found


def _numbers(value: Any) -> Any:
    """NaN and Inf as numbers, below `incident` too."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return NONFINITE.get(value, value) if isinstance(value, str) else value
