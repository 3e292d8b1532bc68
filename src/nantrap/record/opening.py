"""Which kind of log a path holds, by its content; and the one log that a folder means."""

from __future__ import annotations

import json
from pathlib import Path

from nantrap.errors import FormatError, UsageError
from nantrap.record.sources import CsvLines, EventFiles, JsonDocument, JsonLines, Source, TextLines

_HEAD = 65_536
_NAMED = ("trainer_state.json", "metrics.csv")
_PATTERNS = ("*.jsonl", "*.ndjson", "*.log", "*.csv", "*.txt", "*.out")


def find_log(path: Path) -> Path:
    """The log that a path means: the file itself, or the one log in the folder. Several, or none, are an error."""
    if not path.is_dir():
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder; give a run folder or a log")
        return path
    if next(path.glob("*tfevents*"), None) is not None:
        return path
    for name in _NAMED:
        if (path / name).is_file():
            return path / name
    checkpoints = [p for p in path.glob("checkpoint-*/trainer_state.json") if p.parent.name[11:].isdigit()]
    if checkpoints:
        return max(checkpoints, key=lambda p: int(p.parent.name[11:]))
    below = sorted({file.parent for file in path.glob("**/*tfevents*")} | set(path.glob("**/metrics.csv")))
    found = [file for pattern in _PATTERNS for file in sorted(path.glob(pattern))] or below
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(
            f"{path}: no run and no log in this folder (looked for journal-r0.jsonl, TensorBoard event files, "
            "trainer_state.json, metrics.csv, *.jsonl, *.log); give the file itself"
        )
    names = ", ".join(str(file.relative_to(path)) for file in found[:5])
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    raise UsageError(f"{path}: several logs in this folder: {names}{more}; give one of them")


def source_of(path: Path) -> tuple[str, Source]:
    """The kind of a log and its source, judged by name and content. Nothing in it is executed."""
    if path.is_dir() or "tfevents" in path.name:
        return "tensorboard", EventFiles(path)
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if b"\0" in head:
        raise FormatError(f"{path}: a binary file, not a log; give JSON lines, CSV, text or TensorBoard event files")
    text = head.decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    first, newline, rest = text.partition("\n")
    if path.suffix in (".jsonl", ".ndjson") or _is_object(first):
        return "jsonl", JsonLines(path)
    if text[:1] in ("{", "[") and (path.suffix == ".json" or text[:2] in ("{\n", "[\n", "[{")):
        return "json", JsonDocument(path)
    if path.suffix in (".csv", ".tsv") or (newline and _is_table(first, rest.partition("\n")[0])):
        return "csv", CsvLines(path)
    return "text", TextLines(path)


def _is_object(line: str) -> bool:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and "log_history" not in record


def _is_table(header: str, row: str) -> bool:
    """A line of names and a line of numbers, equally many of both."""
    names, cells = header.strip().split(","), row.strip().split(",")
    if (
        len(names) < 2
        or len(names) != len(cells)
        or not all(name.strip(' "') and not name[0].isdigit() for name in names)
    ):
        return False
    try:
        return [float(cell) for cell in cells if cell] != []
    except ValueError:
        return False
