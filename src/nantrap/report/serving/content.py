"""What the server answers with, as plain values: the parts of a run's page, saved results, and `/metrics`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nantrap.incident import BY_SLUG
from nantrap.incident.wording import counted, value, visible
from nantrap.record import open_run
from nantrap.report.diagnostics import VERBS
from nantrap.report.journals import JournalRow, finite_or_none, incident_folders
from nantrap.report.serving.cache import StepCounts
from nantrap.report.serving.foreign import ForeignLog
from nantrap.report.serving.index import Index
from nantrap.report.serving.summary import Summary
from nantrap.report.states import ORDER, seconds_between_lines
from nantrap.report.surroundings import read_json

KINDS = {
    "text": "text log",
    "jsonl": "JSON lines",
    "csv": "table (CSV)",
    "json": "trainer state (JSON)",
    "tensorboard": "TensorBoard",
}
"""The kinds of logs in words."""
_ACTION_SIGNS = {"skip": ("bad", "✖"), "rollback": ("bad", "↶"), "stop": ("bad", "✖"), "apply": ("warn", "▲")}
_LARGEST_RESULT = 4_000_000
_MOST_FILES = 12
_MOST_LINES = 12
_RESULT_TITLES = {
    "nantrap.audit": "Checkpoint audit",
    "nantrap.data": "Data check",
    "nantrap.check": "Check of the run",
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# ---- the page of a run


def facts_of(summary: Summary, index: Index) -> list[tuple[str, str, str]]:
    """The numbers at the top of the page: name, key and text."""
    counts = index.counts(summary.ident)
    speed = f"{value(1000 / summary.judged.milliseconds, 3)} / s" if summary.judged.milliseconds > 0 else "unknown"
    total = f" of {summary.judged.total:,}" if summary.judged.total else ""
    facts = [
        ("step", "step", f"{summary.step:,}{total}"),
        ("loss", "loss", value(summary.loss, 4) if summary.recent else "none"),
    ]
    for name, key, number, digits in (
        ("gradient norm", "norm", summary.grad_norm, 4), ("learning rate", "lr", summary.lr, 3),
    ):  # fmt: skip
        if summary.kind == "run" or math.isfinite(number):
            facts.append((name, key, value(number, digits) if summary.recent else "none"))
    if summary.kind != "run":
        return [*facts, ("log", "kind", KINDS.get(summary.kind, summary.kind))]
    facts += [
        ("applied, last steps", "applied", f"{summary.recent_applied:,} of {summary.recent:,}"),
        ("not applied", "skipped", f"{counts.skipped:,}"),
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
        "events": [event_of(row, "") for row in rows if row.is_event][-40:],
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
        if row.is_event:
            known = folders.pop(row.step, None)
            events.append(event_of(row, known.name if known is not None else ""))
    for step, folder in sorted(folders.items())[-40:]:
        found = read_json(folder / "incident.json")
        causes = found.get("causes")
        first = causes[0] if isinstance(causes, list) and causes and isinstance(causes[0], dict) else {}
        summary = {"cause": first.get("slug"), "module": found.get("module"), "op": found.get("op")}
        events.append(event_of(JournalRow(step, str(found.get("action", "skip")), {}, incident=summary), folder.name))
    return grouped(sorted(events, key=lambda event: -int(event["step"])))[:40]


def grouped(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The latest event of each cause and action, with how many there are in the list, and the step of the first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for event in events:
        latest = groups.setdefault((event["code"], event["did"]), {**event, "times": 0})
        latest |= {"times": latest["times"] + 1, "first": event["step"], "folder": latest["folder"] or event["folder"]}
    return list(groups.values())


def event_of(row: JournalRow, folder: str) -> dict[str, Any]:
    """One event of the list beside the curves."""
    tone, sign = _ACTION_SIGNS.get(row.action, ("warn", "▲"))
    entry = BY_SLUG.get(row.cause)
    where = [str(row.incident[name]) for name in ("module", "op") if row.incident.get(name)]
    said = [entry.title if entry is not None else row.cause, ", ".join(where)]
    return {
        "step": row.step, "tone": tone, "sign": sign, "code": visible(entry.code if entry else "incident"),
        "did": VERBS.get(row.action, "recorded"), "text": visible("; ".join(part for part in said if part)),
        "folder": folder, "times": 1, "first": row.step,
    }  # fmt: skip


def ranks_of(journals: list[Path]) -> list[tuple[int, str, str, str]]:
    """Each rank: its number, last step, loss and milliseconds per step."""
    ranks = []
    for rank, journal in enumerate(journals[:64]):
        series = open_run(journal, last_bytes=32 * 1024).main
        if len(series):
            loss = series.get("loss")
            last = value(float(loss.value[-1]) if loss is not None else math.nan, 4)
            ranks.append((rank, f"{series.step[-1]:,}", last, f"{1000 * seconds_between_lines(series):,.0f}"))
    return ranks


def raw_columns(rows: list[JournalRow], first: int, last: int) -> dict[str, Any]:
    """Every step of a short range, in the form of the stored curves."""
    columns: dict[str, list[list[Any]]] = {}
    for row in rows:
        for name, number in row.numbers.items():
            good = finite_or_none(number)
            columns.setdefault(name, []).append([row.step, good, good, good, int(good is not None), int(good is None)])
    marks = [[row.step, row.action, row.cause] for row in rows if row.is_event]
    return {"first": first, "last": last, "width": 1, "columns": columns, "marks": marks}


def lines_of(log: ForeignLog | None) -> list[dict[str, Any]]:
    """What a text log says of NaN and errors, the last line first."""
    found = reversed(log.run.notes[-40:] if log is not None else ())
    return [
        {
            "step": note.step, "tone": "warn", "sign": "▲", "code": f"line {note.line:,}", "did": "",
            "text": visible(note.text), "folder": "", "times": 1, "first": note.step,
        }
        for note in found
    ]  # fmt: skip


# ---- results of `nantrap audit --json` and `nantrap data --json` that were saved in the folder of a run


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
        files = sorted(p for p in run.glob("*.json") if p.is_file() and p.stat().st_size < _LARGEST_RESULT)
    except OSError:
        return ()
    for file in files[:_MOST_FILES]:
        document = read_json(file)
        family = str(document.get("schema", "")).partition("/")[0]
        if family in _RESULT_TITLES:
            found.append(_result(_RESULT_TITLES[family], file.name, document))
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


# ---- `/metrics`: the state of every run in the text format of Prometheus


def metrics(runs: Iterable[tuple[Summary, StepCounts | None]]) -> str:
    """One gauge for each number of each run."""
    found = list(runs)
    return "\n".join(_lines(found)) + "\n"


_FIELDS = {"steps": "attempted"}


def _lines(runs: list[tuple[Summary, StepCounts | None]]) -> Iterator[str]:
    """The metrics of all runs as Prometheus reads them."""
    yield from _gauge("nantrap_step", "the last step that was attempted", ((s, "", s.step) for s, _ in runs))
    yield from _gauge("nantrap_loss", "the loss of the last step", ((s, "", s.loss) for s, _ in runs))
    yield from _gauge(
        "nantrap_grad_norm", "the gradient norm of the last step", ((s, "", s.grad_norm) for s, _ in runs)
    )
    yield from _gauge("nantrap_learning_rate", "the learning rate of the last step", ((s, "", s.lr) for s, _ in runs))
    scaled = ((s, "", s.scale) for s, _ in runs if s.scale is not None)
    yield from _gauge("nantrap_loss_scale", "the loss scale of the last step", scaled)
    yield from _gauge(
        "nantrap_last_line_seconds", "when the journal was last written", ((s, "", s.modified) for s, _ in runs)
    )
    for name, text in (
        ("steps", "steps attempted"), ("applied", "steps applied"),
        ("skipped", "steps refused by the guard or given up by the script"),
        ("scaler_probes", "steps that a GradScaler left out while it searched its scale"),
        ("rollbacks", "skipped steps after which an older state was restored"),
        ("stops", "skipped steps with which the guard stopped the run"), ("incidents", "incidents"),
    ):  # fmt: skip
        counted = ((s, "", getattr(c, _FIELDS.get(name, name))) for s, c in runs if c is not None)
        yield from _gauge(f"nantrap_{name}", f"{text}, as far as the journal was read", counted)
    causes = (
        (s, f',cause="{_label(cause)}"', n) for s, c in runs if c is not None for cause, n in sorted(c.causes.items())
    )
    yield from _gauge("nantrap_incidents_by_cause", "incidents by cause, as far as the journal was read", causes)
    states = ((s, f',state="{word}"', float(s.state.word == word)) for s, _ in runs for word in ORDER)
    yield from _gauge("nantrap_state", "1 for the state of the run, 0 for all others", states)


def _gauge(name: str, text: str, samples: Iterable[tuple[Summary, str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for summary, labels, number in samples:
        yield f'{name}{{run="{_label(summary.name)}"{labels}}} {_number(number)}'


def _number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return repr(number)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
