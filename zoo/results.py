"""Results of tools as files in `zoo/results`: where, when and with what they were measured, and what came out.

A program is stored as letters and seconds: `n` noticed, `s` right step, `p` right place as far as named, `f` place in
full, `l` right line (`-` if the truth names none), `c` right cause, `3` among three, `v` proven, `r` a repair was
tried, `x` a proof of a wrong cause, `y` a false sentence, `e` ended finite, `a` all steps made, `!` ended with an
error. Programs for measuring only are stored as sums.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from zoo.judging import Answer, Tally
from zoo.loading import ZOO, collection_of, is_held_back, manifest
from zoo.running import Tool

RESULTS = ZOO / "results"
_FLAGS = {
    "n": "found", "s": "step", "p": "place", "f": "full_place", "l": "line", "c": "cause", "3": "among_three",
    "v": "proven", "r": "verified", "x": "false_proofs", "y": "false_sentences", "e": "finite", "a": "all_steps",
    "!": "raised",
}  # fmt: skip


def setting(packages: Iterable[str], command: str) -> dict[str, Any]:
    """The date, the machine, the versions and the command of a measurement."""
    versions = {"python": platform.python_version()}
    for package in ("torch", *packages):
        versions[package] = importlib.metadata.version(package)
    return {
        "date": today(),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "processor": _processor(),
                    "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)},
        "versions": versions,
        "command": command,
    }  # fmt: skip


def missing(tool: Tool) -> list[str]:
    """The packages of a tool that are not installed."""
    installed = {each.metadata["Name"].lower() for each in importlib.metadata.distributions() if each.metadata["Name"]}
    return [name for name in getattr(tool, "packages", ()) if name.lower() not in installed]


def today() -> str:
    """The date, in the middle of the world."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def encode(answer: Answer) -> list[Any]:
    """An answer as letters and seconds."""
    letters = "".join(letter for letter, name in _FLAGS.items() if getattr(answer, name))
    letters += "-" if answer.line is None else ""
    return [letters, None if answer.seconds is None else round(answer.seconds, 4)]


def decode(tool: str, name: str, stored: list[Any]) -> Answer:
    """The answer of a stored line; what was said is not stored."""
    letters, seconds = stored
    values: dict[str, Any] = {field: letter in letters for letter, field in _FLAGS.items()}
    values["line"] = None if "-" in letters else values["line"]
    values |= {field: ("",) if values[field] else () for field in ("false_proofs", "false_sentences")}
    values["raised"] = "an error" if values["raised"] else ""
    return Answer(Path(name).stem, tool, name.startswith("controls/"), seconds=seconds, **values)


def save(tool: Tool, found: dict[Path, Answer], names: Iterable[str] = ()) -> Path:
    """Write what a tool did, keeping what it did with programs that were not run now and still are in the zoo."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{tool.name}.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    programs = {name: kept for name, kept in before.get("programs", {}).items() if name in manifest()["programs"]}
    apart = before.get("measure_only", {})
    here = {file.resolve().relative_to(ZOO).as_posix(): (file, answer) for file, answer in found.items()}
    programs |= {name: encode(answer) for name, (file, answer) in here.items() if not is_held_back(file)}
    for collection in {collection_of(file) for file in found if is_held_back(file)}:
        theirs = [answer for file, answer in found.items() if collection_of(file) == collection]
        apart[collection] = Tally(theirs).counts()
    command = " ".join(["python -m zoo --save --tool", tool.name, *names])
    if set(before.get("programs", {})) - {file.resolve().relative_to(ZOO).as_posix() for file in found}:
        command = "; ".join(dict.fromkeys([*before["command"].split("; "), command]))
    written = {
        "tool": tool.name, "about": tool.about, **setting(getattr(tool, "packages", ()), command),
        "measure_only": apart, "programs": dict(sorted(programs.items())),
    }  # fmt: skip
    path.write_text(_as_lines(written), encoding="utf-8")
    return path


def _as_lines(written: dict[str, Any]) -> str:
    """JSON with one line for each program."""
    programs = ",\n".join(f"  {json.dumps(n)}: {json.dumps(v)}" for n, v in written["programs"].items())
    head = json.dumps({**written, "programs": None}, indent=1)
    return head.replace('"programs": null', f'"programs": {{\n{programs}\n }}') + "\n"


def read(tool: str) -> dict[str, Any] | None:
    """A stored result."""
    path = RESULTS / f"{tool}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def tally_of(result: dict[str, Any], collections: Iterable[str] | None = None) -> Tally:
    """The answers of a stored result on the programs of these collections, or on all."""
    wanted = None if collections is None else set(collections)
    entries = manifest()["programs"]
    return Tally([
        decode(result["tool"], name, stored)
        for name, stored in result["programs"].items()
        if name in entries and (wanted is None or entries[name]["collection"] in wanted)
    ])  # fmt: skip


def save_cost(tool: Tool, found: dict[str, dict[str, float]]) -> None:
    """Write what a healthy step costs with a tool; every entry has its own date, machine and command."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "cost_of_a_step.json"
    written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    command = f"python -m zoo --save --cost --tool {tool.name}"
    entry = {"about": tool.about, **setting(getattr(tool, "packages", ()), command), "models": found}
    written[tool.name] = entry
    path.write_text(json.dumps(dict(sorted(written.items())), indent=1) + "\n", encoding="utf-8")
