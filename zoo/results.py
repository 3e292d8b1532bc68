"""Results on disk: when, where, at which commit and with what they were measured, and what came out.

A file of parts (`save_parts`) keeps each part with its own setting: the costs of a step, the sets of others, and the
files of `benchmarks`. A tool's answers on the programs have a file of their own (`save`), in which `measured` says when
each piece was run that still counts, and a program is letters, seconds and the commit at which it was run (older lines
have none): `n` noticed, `s` right step, `p` right place as far as named, `f` place in full, `l` right line (`-` if the
truth names none), `c` right cause, `3` among three, `v` proven, `r` a repair was tried, `x` a proof of a wrong cause,
`y` a false sentence, `e` ended finite, `a` all steps made, `!` ended with an error. Programs for measuring only are
stored as sums.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from zoo.judging import Answer, Tally
from zoo.loading import ZOO, collection_of, is_healthy, is_held_back, manifest
from zoo.running import Tool

RESULTS = ZOO / "results"
COSTS = RESULTS / "cost_of_a_step.json"
OUTSIDE = RESULTS / "outside.json"
BENCHMARKS = ZOO.parent / "benchmarks" / "results"
_FLAGS = {
    "n": "found", "s": "step", "p": "place", "f": "full_place", "l": "line", "c": "cause", "3": "among_three",
    "v": "proven", "r": "verified", "x": "false_proofs", "y": "false_sentences", "e": "finite", "a": "all_steps",
    "!": "raised",
}  # fmt: skip


def setting(packages: Iterable[str], command: str) -> dict[str, Any]:
    """The date, the commit, the machine, the versions and the command of a measurement."""
    versions = {"python": platform.python_version()}
    for package in ("torch", *packages):
        versions[package] = importlib.metadata.version(package)
    return {
        "date": today(),
        "commit": commit_of(ZOO),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "processor": _processor(),
                    "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "versions": versions,
        "command": command,
    }  # fmt: skip


def commit_of(folder: Path) -> str:
    """The commit of the checkout that a folder lies in; nothing if it lies in none."""
    command = ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    except OSError:
        return ""


def read(path: Path) -> dict[str, Any]:
    """What a file of results holds; nothing if it was never written."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def save_parts(
    path: Path, found: Mapping[str, Any], command: str, packages: Iterable[str] = ("nantrap",)
) -> dict[str, Any]:
    """Write what was measured, each part with its setting; parts that were not measured now stay. All are returned."""
    path.parent.mkdir(exist_ok=True)
    measured = {part: {"found": value, **setting(packages, command)} for part, value in found.items()}
    stored = {**read(path), **measured}
    path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return stored


def packages_of(tool: Tool) -> tuple[str, ...]:
    """The distributions that a tool needs."""
    return tuple(getattr(tool, "packages", ()))


def missing(tool: Tool) -> list[str]:
    """The packages of a tool that are not installed."""
    installed = {each.metadata["Name"].lower() for each in importlib.metadata.distributions() if each.metadata["Name"]}
    return [name for name in packages_of(tool) if name.lower() not in installed]


def today() -> str:
    """The date, in the middle of the world."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def encode(answer: Answer, commit: str) -> list[Any]:
    """An answer as letters, seconds and the commit."""
    letters = "".join(letter for letter, name in _FLAGS.items() if getattr(answer, name))
    letters += "-" if answer.line is None else ""
    return [letters, None if answer.seconds is None else round(answer.seconds, 4), commit]


def decode(tool: str, name: str, stored: list[Any]) -> Answer:
    """The answer of a stored line; what was said is not stored."""
    letters, seconds, *_ = stored
    values: dict[str, Any] = {field: letter in letters for letter, field in _FLAGS.items()}
    values["line"] = None if "-" in letters else values["line"]
    values |= {field: ("",) if values[field] else () for field in ("false_proofs", "false_sentences")}
    values["raised"] = "an error" if values["raised"] else ""
    return Answer(Path(name).stem, tool, is_healthy(ZOO / name), seconds=seconds, **values)


def save(tool: Tool, found: dict[Path, Answer], names: Iterable[str] = ()) -> Path:
    """Write what a tool did, keeping what it did with programs that were not run now and still are in the zoo."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{tool.name}.json"
    before = read(path)
    programs = {name: kept for name, kept in before.get("programs", {}).items() if name in manifest()["programs"]}
    apart = before.get("measure_only", {})
    here = {file.resolve().relative_to(ZOO).as_posix(): (file, answer) for file, answer in found.items()}
    command = " ".join(["python -m zoo --save --tool", tool.name, *names])
    now = setting(packages_of(tool), command)
    commit = now["commit"]
    programs |= {name: encode(answer, commit) for name, (file, answer) in here.items() if not is_held_back(file)}
    for collection in {collection_of(file) for file in found if is_held_back(file)}:
        theirs = [answer for file, answer in found.items() if collection_of(file) == collection]
        apart[collection] = {**Tally(theirs).counts(), "commit": commit}
    commits = {row[2] if len(row) == 3 else None for row in programs.values()}
    commits |= {row.get("commit") for row in apart.values()}
    still = [each for each in before.get("measured", []) if None in commits or each.get("commit") in commits]
    measured = [*(each for each in still if (each["command"], each.get("commit")) != (command, commit)), now]
    written = {"tool": tool.name, "about": tool.about, "measured": measured, "measure_only": apart,
               "programs": dict(sorted(programs.items()))}  # fmt: skip
    path.write_text(_as_lines(written), encoding="utf-8")
    return path


def _as_lines(written: dict[str, Any]) -> str:
    """JSON with one line for each program."""
    programs = ",\n".join(f"  {json.dumps(n)}: {json.dumps(v)}" for n, v in written["programs"].items())
    head = json.dumps({**written, "programs": None}, indent=1)
    return head.replace('"programs": null', f'"programs": {{\n{programs}\n }}') + "\n"


def tally_of(result: dict[str, Any], collections: Iterable[str] | None = None) -> Tally:
    """The answers of a stored result on the programs of these collections, or on all."""
    wanted = None if collections is None else set(collections)
    entries = manifest()["programs"]
    return Tally([
        decode(result["tool"], name, stored)
        for name, stored in result["programs"].items()
        if name in entries and (wanted is None or entries[name]["collection"] in wanted)
    ])  # fmt: skip
