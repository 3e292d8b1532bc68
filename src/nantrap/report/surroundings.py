"""What is around an incident on disk: the run's description, the steps before, other incidents, the source file.

Everything here is optional and may be missing: an incident folder may be all that there is, and it is read while the
run continues. Of the run's description a report shows only the facts that `environment` lists, and no secrets.
"""

from __future__ import annotations

import json
import mmap
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nantrap.incident import Incident, Source
from nantrap.incident.redaction import redacted, without_secrets
from nantrap.report.journals import JournalRow, rows_before

_INCIDENT_MARK = b'"incident":{'
_MOST_BYTES_SEARCHED = 64 * 1024 * 1024
_MOST_REPEATS = 2000
_STEPS_BEFORE = 48
_CONTEXT = 3
_LARGEST_SOURCE = 5_000_000
_MOST_SIBLINGS = 60


# ---- the other steps of a run that failed as an incident did: most of them were counted and not diagnosed again


@dataclass(frozen=True, slots=True)
class Repeats:
    """The steps with the same phase, module, operation and cause, the incident's own step left out.

    `whole` is false where the journal is so long that only its end was searched.
    """

    steps: tuple[int, ...] = ()
    whole: bool = True


def repeats_of(incident: Incident, journal: Path) -> Repeats:
    """Search a journal for the steps that failed alike."""
    cause = incident.causes[0].slug if incident.causes else None
    wanted = (incident.phase, incident.module, incident.op, cause)
    steps: list[int] = []
    whole = True
    try:
        with journal.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            begin = max(0, len(text) - _MOST_BYTES_SEARCHED)
            whole = begin == 0
            for entry in _marked(text, begin):
                found = entry["incident"]
                alike = tuple(found.get(name) for name in ("phase", "module", "op", "cause")) == wanted
                if alike and entry.get("step") != incident.step and isinstance(entry.get("step"), int):
                    steps.append(entry["step"])
                if len(steps) == _MOST_REPEATS:
                    break
    except (OSError, ValueError):  # no journal, or an empty one
        return Repeats()
    return Repeats(tuple(dict.fromkeys(steps)), whole)


def _marked(text: mmap.mmap, begin: int) -> Iterator[dict[str, Any]]:
    """The lines that describe an incident, found without reading the others."""
    at = text.find(_INCIDENT_MARK, begin)
    while at >= 0:
        end = text.find(b"\n", at)
        if end < 0:
            return  # it is being written
        try:
            entry = json.loads(text[text.rfind(b"\n", 0, at) + 1 : end])
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict) and isinstance(entry.get("incident"), dict):
            yield entry
        at = text.find(_INCIDENT_MARK, end)


# ---- all that is around it


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found around an incident. Empty where there is nothing.

    Attributes:
        run_name: the name of the folder of the run.
        info: `run.json`.
        moments: the steps up to this one, oldest first.
        siblings: the other incidents of the run, each with the name of its folder.
        repeats: the other steps that failed alike.
        folder: the name of the folder of the incident.
        files: the files of its bundle with their sizes.
        source: the lines around the guilty one, with their numbers.
    """

    run_name: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    moments: tuple[JournalRow, ...] = ()
    siblings: tuple[tuple[str, Incident], ...] = ()
    repeats: Repeats = field(default_factory=Repeats)
    folder: str = ""
    files: tuple[tuple[str, int], ...] = ()
    source: tuple[tuple[int, str], ...] = ()


def surroundings(incident: Incident, folder: Path | None) -> Surroundings:
    """Look around the folder of an incident (`runs/exp1/incidents/001204-r0`)."""
    source = source_lines(incident.source)
    if folder is None:
        return Surroundings(source=source)
    folder = Path(os.path.abspath(folder))
    run = folder.parent.parent if folder.parent.name == "incidents" else None
    about = read_json(folder / "bundle.json")
    files = about.get("files")
    names = sorted(name for name in files if isinstance(name, str)) if isinstance(files, Mapping) else []
    sizes = tuple((name, _size(folder / name)) for name in names if os.sep not in name)
    journal = run / f"journal-r{incident.rank}.jsonl" if run is not None else None
    return Surroundings(
        run_name=run.name if run is not None else "",
        info=read_json(run / "run.json") if run is not None else {},
        moments=tuple(rows_before(journal, incident.step, most=_STEPS_BEFORE)) if journal is not None else (),
        siblings=_siblings(folder),
        repeats=repeats_of(incident, journal) if journal is not None else Repeats(),
        folder=folder.name,
        files=sizes,
        source=source,
    )


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; empty if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def source_lines(source: Source | None) -> tuple[tuple[int, str], ...]:
    """The lines around the guilty one, if the file is there and still has that line; else the recorded line alone."""
    if source is None or not source.text:
        return ()
    alone = ((source.line, source.text),)
    path = Path(source.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LARGEST_SOURCE:
            return alone
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return alone
    at = source.line - 1
    if not 0 <= at < len(lines) or without_secrets(lines[at]).rstrip() != source.text.rstrip():
        return alone
    first, last = max(0, at - _CONTEXT), min(len(lines), at + _CONTEXT + 1)
    return tuple((number + 1, without_secrets(lines[number])) for number in range(first, last))


def _siblings(folder: Path) -> tuple[tuple[str, Incident], ...]:
    """The other incidents of the same run. A folder that is not an incident, or is being written, is left out."""
    found = []
    try:
        names = sorted(entry.name for entry in folder.parent.iterdir() if entry.is_dir())
    except OSError:
        return ()
    for name in names[:_MOST_SIBLINGS]:
        if name == folder.name or name.startswith("."):
            continue
        document = read_json(folder.parent / name / "incident.json")
        try:
            found.append((name, Incident.from_dict(document)))
        except ValueError:  # not an incident of ours, or being written
            continue
    return tuple(found)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


# ---- which facts about a run its reports show


def environment(info: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The facts of `run.json` that a report shows: an allow-list. Values after a secret's name are left out."""
    facts: list[tuple[str, str]] = []
    for name, label in (("nantrap", "nantrap"), ("torch", "torch"), ("python", "python"), ("model", "model"),
                        ("optimizer", "optimizer"), ("autocast", "autocast"),
                        ("world_size", "ranks"), ("max_grad_norm", "clip")):  # fmt: skip
        found = info.get(name)
        if isinstance(found, (str, int, float)) and not isinstance(found, bool):
            facts.append((label, str(found)))
    parameters = info.get("parameters")
    if isinstance(parameters, int):
        facts.append(("parameters", f"{parameters:,}"))
    for name, label in (("precision", "weights in"), ("devices", "device")):
        found = info.get(name)
        if isinstance(found, (list, tuple)) and found:
            facts.append((label, ", ".join(str(item) for item in found[:8])))
    if isinstance(info.get("loss_scaler"), bool):
        facts.append(("loss scaler", "yes" if info["loss_scaler"] else "no"))
    policy = info.get("policy")
    if isinstance(policy, Mapping):
        facts.append(("policy", _policy(policy)))
    if isinstance(info.get("started"), str):
        facts.append(("started", info["started"]))
    arguments = info.get("arguments")
    if isinstance(arguments, list) and arguments:
        facts.append(("command", command_text([str(item) for item in arguments])))
    return tuple(facts)


def command_text(arguments: list[str]) -> str:
    """A command line without what may be a secret."""
    shown = redacted(arguments[:60], names=None)
    return " ".join(map(shlex.quote, shown)) + (" ..." if len(arguments) > 60 else "")


def _policy(policy: Mapping[str, Any]) -> str:
    """What the guard does with bad steps, in the order in which it does it."""
    parts = [str(policy.get("on_incident", "skip"))]
    if "max_consecutive_skips" in policy:
        parts.append(f"at most {policy['max_consecutive_skips']} in a row")
    if "then" in policy:
        parts.append(f"then {policy['then']}")
    if policy.get("then") == "rollback" and "max_rollbacks" in policy:
        parts.append(f"at most {policy['max_rollbacks']} rollbacks")
    return ", ".join(parts)
