"""Results of `nantrap audit --json` and `nantrap data --json` that were saved in the folder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nantrap.incident.wording import counted
from nantrap.report.surroundings import read_json

_LARGEST = 4_000_000
_MOST_FILES = 12
_MOST_LINES = 12
_TITLES = {"nantrap.audit": "Checkpoint audit", "nantrap.data": "Data check", "nantrap.check": "Check of the run"}


@dataclass(frozen=True, slots=True)
class SavedResult:
    """One result: a verdict and its first findings in words."""

    title: str
    file: str
    tone: str
    sign: str
    verdict: str
    lines: tuple[str, ...]


def results_of(run: Path) -> tuple[SavedResult, ...]:
    """The results in the folder of a run, by the schema that they name."""
    found = []
    try:
        files = sorted(p for p in run.glob("*.json") if p.is_file() and p.stat().st_size < _LARGEST)
    except OSError:
        return ()
    for file in files[:_MOST_FILES]:
        document = read_json(file)
        family = str(document.get("schema", "")).partition("/")[0]
        if family in _TITLES:
            found.append(_result(_TITLES[family], file.name, document))
    return tuple(found)


def _result(title: str, name: str, document: Mapping[str, Any]) -> SavedResult:
    lines = tuple(_sentences(document))
    clean = document.get("clean", document.get("ok"))
    if clean is None:
        clean = not lines
    verdict = str(document.get("verdict") or ("no problem found" if clean else counted(len(lines), "finding")))
    tone, sign = ("ok", "✓") if clean else ("warn", "▲") if verdict == "doubtful" else ("bad", "✖")
    return SavedResult(title, name, tone, sign, verdict, lines[:_MOST_LINES])


def _sentences(document: Mapping[str, Any]) -> list[str]:
    """The findings in words, wherever the document keeps them."""
    said: list[str] = []
    for key in ("findings", "problems", "files", "checkpoints"):
        entries = document.get(key)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, str):
                said.append(entry)
            elif isinstance(entry, Mapping):
                if isinstance(entry.get("findings"), list) or isinstance(entry.get("problems"), list):
                    where = str(entry.get("path") or entry.get("file") or "")
                    said += [f"{where}: {text}" if where else text for text in _sentences(entry)]
                elif entry.get("outcome") != "pass":
                    words = entry.get("message") or entry.get("summary") or entry.get("text") or entry.get("code")
                    if words:
                        code = entry.get("code")
                        where = ", ".join(str(entry[key]) for key in ("file", "field") if entry.get(key))
                        text = f"{where}: {words}" if where else str(words)
                        said.append(f"{code} {text}" if code and code != words else text)
    return said
