"""`run.json`: what was run. An allow-list of facts; never the environment, never data."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from nantrap._version import __version__
from nantrap.incident.redaction import option_names, redacted, without_home
from nantrap.record.durable import remove_orphans, write_atomically

SCHEMA = "nantrap.run/1"


def write_run_info(run_dir: str | os.PathLike[str], facts: dict[str, Any]) -> Path:
    """Describe this start of the run. A second start in the same folder is added to the first, which stays."""
    path = Path(run_dir) / "run.json"
    start = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arguments": redacted(sys.argv, option_names(_source())),
        "python": platform.python_version(),
        "nantrap": __version__,
        "torch": _torch_version(),
        "pid": os.getpid(),
        **_without_home(facts),
    }
    remove_orphans(Path(run_dir))
    remove_orphans(Path(run_dir) / "incidents")
    document: dict[str, Any] = {"schema": SCHEMA, **start}
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(earlier, dict) and earlier.get("schema") == SCHEMA:
            document = {**earlier, "resumed": [*_list(earlier.get("resumed")), start]}
    except (OSError, ValueError, RecursionError):
        pass
    write_atomically(path, json.dumps(document, indent=2) + "\n")
    return path


def add_run_fact(run_dir: str | os.PathLike[str], name: str, value: Any) -> None:
    """Add what became known after the last start of the run was described."""
    path = Path(run_dir) / "run.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    starts = _list(document.get("resumed"))
    (starts[-1] if starts else document)[name] = value
    write_atomically(path, json.dumps(document, indent=2) + "\n")


def _source() -> str:
    """The script, which names its own options."""
    try:
        with open(sys.argv[0], encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except (OSError, ValueError, IndexError):
        return ""


def _without_home(value: Any) -> Any:
    """Copies a value with `~` in place of the home folder, in every text."""
    if isinstance(value, str):
        return without_home(value)
    if isinstance(value, dict):
        return {key: _without_home(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_home(item) for item in value]
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _torch_version() -> str | None:
    torch = sys.modules.get("torch")
    return None if torch is None else str(torch.__version__)
