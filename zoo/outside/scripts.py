"""Runs a script of somebody else as it is, plainly or with a tool that needs no change of the script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.results import OUTSIDE, save_parts
from zoo.tools import find_tool

SITE = Path(__file__).resolve().parent / "site"
TOOLS = ("nantrap_run", "anomaly_mode")
"""Those of `zoo.tools` that need no change of a script; `plain` is the script itself."""
_ANOMALY = (
    "import runpy, sys, torch\n"
    "torch.autograd.set_detect_anomaly(True)\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class Said:
    """How a script ended, and the first thing that the tool said: a code or a node, and a line as `file:number`."""

    exit: int | None
    alarm: str = ""
    line: str = ""
    words: str = ""


def run(
    tool: str, script: Path, arguments: list[str], folder: Path, surroundings: dict[str, str], limit: float
) -> Said:
    """Run a script in a folder, with stand-ins for downloads and for packages of its authors (`site/`)."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(SITE), str(script.parent), surroundings.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NANTRAP_")}
    fixed = {"ZOO_OUTSIDE": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "Agg", "NO_COLOR": "1"}
    environment = kept | fixed | surroundings | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    before = {
        "plain": [],
        "nantrap_run": ["-m", "nantrap", "run", "--run-dir", str(folder / "nantrap")],
        "anomaly_mode": ["-c", _ANOMALY],
    }[tool]
    command = [sys.executable, *before, str(script), *arguments]
    try:
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else error.stderr or ""
        return _said(tool, None, said, script)
    (folder / f"{tool}.stderr").write_text(ended.stderr, encoding="utf-8")
    return _said(tool, ended.returncode, ended.stderr, script)


def _said(tool: str, code: int | None, stderr: str, script: Path) -> Said:
    last = stderr.strip().splitlines()[-1:] if code else []
    if tool == "nantrap_run":
        found = re.search(r"^error\[(NT\d+)\]: (.*)\n(?:  --> (.*?):(\d+).*\n)?", stderr, flags=re.MULTILINE)
        if found is not None:
            line = f"{Path(found[3]).name}:{found[4]}" if found[3] else ""
            return Said(code, found[1], line, found[2])
    if tool == "anomaly_mode" and (found := re.search(r"Function '(\w+)' returned nan values", stderr)):
        forward = stderr.partition("Traceback of forward call")[2].partition("\n (Triggered")[0]
        frames = [
            (file, number) for file, number in re.findall(r'File "(.*?)", line (\d+)', forward)
            if str(script.parent) in file
        ]  # fmt: skip
        return Said(code, found[1], f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else "")
    return Said(code, words=last[0] if last else "")


def judged(
    about: dict[str, str],
    programs: Iterable[int],
    said_of: Callable[[str, int, Path, Path], tuple[Said, bool]],
    clone: Path,
    folder: Path,
    only: list[str],
) -> dict[str, Any]:
    """Each tool on programs of which the guilty line is known: what was said, and whether the line was right."""
    numbers, rows, stored, lacking = [n for n in programs if not only or str(n) in only], [], {}, set()
    for tool in TOOLS:
        found = {str(number): said_of(tool, number, clone, folder) for number in numbers}
        seen, right = sum(bool(said.alarm) for said, _ in found.values()), sum(right for _, right in found.values())
        rows.append([find_tool(tool).about, f"{seen}/{len(found)}", f"{right}/{len(found)}"])
        stored[tool] = {number: [said.alarm, said.line, said.words, right] for number, (said, right) in found.items()}
        lacking |= {number for number, (said, _) in found.items() if "ModuleNotFound" in said.words}
    words = f" Not run, because a package was missing: {', '.join(sorted(lacking, key=int))}." if lacking else ""
    return {**about, "about": about["about"] + words, "heads": ["tool", "noticed", "right line"], "rows": rows,
            "programs": stored}  # fmt: skip


def save(name: str, clone: Path, found: dict[str, Any]) -> None:
    """Store what was found in a set, with the commit of its clone."""
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    save_parts(OUTSIDE, {name: {**found, "commit": commit}}, f"python -m zoo.outside {name} --clone FOLDER")
