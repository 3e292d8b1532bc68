"""What the page of a run shows, as plain values: facts, events, ranks, steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from nantrap.incident import BY_SLUG
from nantrap.incident.wording import visible
from nantrap.report.journals import JournalRow, finite_or_none, incident_folders, tail
from nantrap.report.numbers import value
from nantrap.report.serving.foreign import ForeignLog
from nantrap.report.serving.index import Index
from nantrap.report.serving.summary import Summary
from nantrap.report.surroundings import read_json
from nantrap.report.wording import VERBS

KINDS = {
    "text": "text log",
    "jsonl": "JSON lines",
    "csv": "table (CSV)",
    "json": "trainer state (JSON)",
    "tensorboard": "TensorBoard",
}
"""The kinds of logs in words."""
_SIGNS = {"skip": ("bad", "✖"), "rollback": ("bad", "↶"), "stop": ("bad", "✖"), "apply": ("warn", "▲")}


def facts_of(summary: Summary, index: Index) -> list[tuple[str, str, str]]:
    """The numbers at the top of the page: name, key and text."""
    counts = index.counts(summary.ident)
    speed = f"{value(1000 / summary.milliseconds, 3)} / s" if summary.milliseconds > 0 else "unknown"
    total = f" of {summary.total:,}" if summary.total else ""
    facts = [("step", "step", f"{summary.step:,}{total}"), ("loss", "loss", value(summary.loss, 4))]
    for name, key, number, digits in (
        ("gradient norm", "norm", summary.grad_norm, 4), ("learning rate", "lr", summary.lr, 3),
    ):  # fmt: skip
        if summary.kind == "run" or math.isfinite(number):
            facts.append((name, key, value(number, digits)))
    if summary.kind != "run":
        return [*facts, ("log", "kind", KINDS.get(summary.kind, summary.kind))]
    facts += [
        ("applied, last steps", "applied", f"{summary.recent_applied:,} of {summary.recent:,}"),
        ("not applied", "skipped", f"{counts.skipped + counts.rollbacks + counts.stops:,}"),
        ("rollbacks", "rollbacks", f"{counts.rollbacks:,}"),
        ("speed", "speed", speed),
    ]
    if summary.scale is not None:
        facts.insert(4, ("loss scale", "scale", value(summary.scale, 4)))
    return facts


def message_of(summary: Summary, rows: list[JournalRow], index: Index) -> dict[str, Any]:
    """What is new on the page of a run."""
    return {
        "run": summary.to_dict(),
        "facts": {ident: text for _, ident, text in facts_of(summary, index)},
        "rows": [[r.step, r.action, {n: finite_or_none(v) for n, v in r.numbers.items()}] for r in rows[-2000:]],
        "events": [event_of(row, "") for row in rows if row.incident or row.action != "apply"][-40:],
    }


def feed_of(rows: list[JournalRow], run: Path) -> list[dict[str, Any]]:
    """The last events: those at the end of the journal, and the incidents before it that have a folder."""
    folders: dict[int, Path] = {}
    for folder in incident_folders(run):
        number = folder.name.partition("-")[0]
        if number.isdigit():
            folders.setdefault(int(number), folder)
    events = []
    for row in rows:
        if row.incident or row.action != "apply":
            known = folders.pop(row.step, None)
            events.append(event_of(row, known.name if known is not None else ""))
    for step, folder in sorted(folders.items())[-40:]:
        found = read_json(folder / "incident.json")
        causes = found.get("causes")
        first = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else {}
        summary = {"cause": first.get("slug"), "module": found.get("module"), "op": found.get("op")}
        events.append(event_of(JournalRow(step, str(found.get("action", "skip")), {}, incident=summary), folder.name))
    return sorted(events, key=lambda event: -int(event["step"]))[:40]


def event_of(row: JournalRow, folder: str) -> dict[str, Any]:
    """One event of the list beside the curves."""
    tone, sign = _SIGNS.get(row.action, ("warn", "▲"))
    cause = str(row.incident.get("cause") or "")
    entry = BY_SLUG.get(cause)
    where = [str(row.incident[name]) for name in ("module", "op") if row.incident.get(name)]
    said = [entry.title if entry is not None else cause, ", ".join(where)]
    return {
        "step": row.step, "tone": tone, "sign": sign, "code": visible(entry.code if entry else "incident"),
        "did": VERBS.get(row.action, "recorded"), "text": visible("; ".join(part for part in said if part)),
        "folder": folder,
    }  # fmt: skip


def ranks_of(journals: list[Path]) -> list[tuple[int, str, str, str]]:
    """Each rank: its number, last step, loss and milliseconds per step."""
    ranks = []
    for rank, journal in enumerate(journals[:64]):
        rows = tail(journal, most_bytes=32 * 1024)
        if rows:
            middle = sorted(row.milliseconds for row in rows)[len(rows) // 2]
            loss = value(rows[-1].numbers.get("loss", math.nan), 4)
            ranks.append((rank, f"{rows[-1].step:,}", loss, f"{middle:,.0f}"))
    return ranks


def raw_columns(rows: list[JournalRow], first: int, last: int) -> dict[str, Any]:
    """Every step of a short range, in the form of the stored curves."""
    columns: dict[str, list[list[Any]]] = {}
    for row in rows:
        for name, number in row.numbers.items():
            good = finite_or_none(number)
            columns.setdefault(name, []).append([row.step, good, good, good, int(good is not None), int(good is None)])
    marks = [[r.step, r.action, str(r.incident.get("cause") or "")] for r in rows if r.incident or r.action != "apply"]
    return {"first": first, "last": last, "width": 1, "columns": columns, "marks": marks}


def lines_of(log: ForeignLog | None) -> list[dict[str, Any]]:
    """What a text log says of NaN and errors, the last line first."""
    found = reversed(log.notes if log is not None else [])
    return [
        {
            "step": step, "tone": "warn", "sign": "▲", "code": f"line {line:,}", "did": "", "text": visible(text),
            "folder": "",
        }
        for step, line, text in found
    ]  # fmt: skip
