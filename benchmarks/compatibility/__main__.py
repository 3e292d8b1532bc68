"""Unmodified training scripts of other people, with and without `nantrap run`, healthy and with one NaN.

    python benchmarks/compatibility --cache DIR [--python PYTHON] [--only NAME ...] [--runs 1234] [--json FILE]

PYTHON is an interpreter in which torch, nantrap and requirements.txt are installed. Source distributions, data and runs
go to DIR. Run 1 is the plain script, 2 the same under nantrap: what it prints and its final weights have to be
identical, times apart. Run 3 is the plain script with one NaN in its data (or in one layer, where the data are
integers), 4 the same under nantrap. `--runs 0` adds a second plain run: what differs there is not nantrap's doing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts import SCRIPTS, Script

HERE = Path(__file__).resolve().parent
TIMES = (
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?",
    r"\d{8}[-_]\d{6}",
    r"\d+:\d\d(?::\d\d)?(?:\.\d+)?",
    r"\d+(?:\.\d+)?(?:e-?\d+)? ?(?:it/s|s/it|ms|secs?|seconds?|s)\b",
    r"\d+(?:\.\d+)?\[s\]",
    r"0x[0-9a-f]{6,}",
)
LABEL = {"0": "again", "1": "plain", "2": "nantrap", "3": "plain-nan", "4": "nantrap-nan"}


@dataclass(slots=True)
class Run:
    """What one run left behind."""

    code: int | None
    seconds: float
    losses: list[float]
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)
    weights: dict[str, Any] | None
    incidents: list[dict[str, Any]]

    @property
    def not_finite(self) -> int | None:
        """Values in weights, buffers and optimizer state that are not finite; None if nothing was recorded."""
        if not self.weights or not self.weights["optimizers"]:
            return None
        return sum(self.weights[part]["not_finite"] for part in ("weights", "buffers", "state"))


def source(script: Script, cache: Path, python: str) -> Path:
    """The folder of the package's source distribution, fetched if it is not in the cache."""
    stem = f"{script.package.replace('-', '_')}-{script.version}"
    folder = cache / "sources" / stem
    if not folder.exists():
        fetched = cache / "fetched" / stem
        what = ["--no-binary", ":all:", "--no-deps", "--quiet", f"{script.package}=={script.version}"]
        subprocess.run([python, "-m", "pip", "download", *what, "--dest", str(fetched)], check=True)
        archive = next(fetched.glob("*.tar.gz"))
        unpacked = cache / "fetched" / f"{stem}.unpacked"
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        folder.parent.mkdir(parents=True, exist_ok=True)
        next(unpacked.iterdir()).rename(folder)
    return folder


def environment(cache: Path) -> dict[str, str]:
    """One thread, no network, fixed hashes, and sitecustomize.py in front."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPAT_", "NANTRAP_"))}
    return kept | {
        "PYTHONPATH": str(HERE / "site"),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HOME": str(cache / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "COLUMNS": "120",
    }


def made(kind: str, cache: Path, python: str) -> Path:
    """The folder with the data of that kind."""
    folder = cache / "data" / kind
    if not folder.exists():
        started = folder.with_suffix(".part")
        shutil.rmtree(started, ignore_errors=True)
        surroundings = environment(cache) | {"COMPAT_WEIGHTS": os.devnull}
        command = [python, str(HERE / "data.py"), kind, str(started)]
        subprocess.run(command, env=surroundings, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started.rename(folder)
    return folder


def invocation(script: Script, cache: Path, python: str) -> list[str]:
    """The script and its arguments, as they follow `python` or `nantrap run`."""
    if script.module:
        start = ["-m", script.module]
    elif script.command:
        start = [str(Path(python).parent / script.command)]
    else:
        start = [str(source(script, cache, python) / script.path)]
    return [*start, *script.arguments.split()]


def run(script: Script, which: str, cache: Path, python: str, limit: float) -> Run:
    """Run the script in a fresh folder, which has the same name in all runs and is kept under the run's own."""
    poisoned, guarded = which in "34", which in "24"
    home = cache / "runs" / script.name.replace(" ", "-")
    place, kept, notes = home / "now", home / LABEL[which], home / f"{LABEL[which]}.notes"
    for old in (place, kept, notes):
        shutil.rmtree(old, ignore_errors=True)
    notes.mkdir(parents=True)
    shutil.copytree(made(script.bad_data if poisoned and script.bad_data else script.data, cache, python), place)
    (place / script.folder).mkdir(exist_ok=True)
    surroundings = environment(cache) | {"COMPAT_WEIGHTS": str(notes / "weights.json")}
    if poisoned and script.poison:
        surroundings["COMPAT_POISON"] = script.poison
    front = ["-m", "nantrap", "run", "--run-dir", str(notes / "guard")] if guarded else []
    command = [python, *front, *invocation(script, cache, python)]
    started = time.perf_counter()
    with (notes / "stdout").open("wb") as out, (notes / "stderr").open("wb") as err:
        try:
            done = subprocess.run(
                command, cwd=place / script.folder, env=surroundings, stdout=out, stderr=err, timeout=limit
            )
            code: int | None = done.returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = time.perf_counter() - started
    place.rename(kept)
    stdout, stderr = ((notes / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    recorded = notes / "weights.json"
    found = sorted((notes / "guard" / "incidents").glob("*/incident.json"))
    return Run(
        code=code,
        seconds=round(seconds, 1),
        losses=[float(number) for number in re.findall(script.loss, stdout + "\n" + stderr)],
        stdout=stdout,
        stderr=stderr,
        weights=json.loads(recorded.read_text()) if recorded.exists() else None,
        incidents=[json.loads(path.read_text()) for path in found],
    )


def steady(script: Script, text: str) -> list[str]:
    """The lines of an output without what differs in every run."""
    if script.volatile:
        text = re.sub(script.volatile, "", text, flags=re.MULTILINE)
    for pattern in TIMES:
        text = re.sub(pattern, "T", text)
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in re.split(r"[\r\n]+", text))
    return [line for line in lines if line]


def difference(script: Script, one: Run, other: Run) -> str:
    """What is not the same in two healthy runs; empty if nothing."""
    if one.code != other.code:
        return f"exit code {one.code} and {other.code}"
    if [repr(loss) for loss in one.losses] != [repr(loss) for loss in other.losses]:
        return "losses"
    if one.weights != other.weights:
        return "final weights, buffers or optimizer state"
    mine, theirs = steady(script, one.stdout), steady(script, other.stdout)
    if mine != theirs:
        pairs = [pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]]
        return f"stdout: {pairs[0] if pairs else f'{len(mine)} and {len(theirs)} lines'}"
    return ""


def damage(result: Run) -> str:
    """What a NaN did to a run, in a few words."""
    parts = []
    if result.code != 0:
        parts.append("time limit" if result.code is None else f"exit {result.code}")
    if result.not_finite:
        parts.append(f"{result.not_finite} values not finite")
    if result.losses and not math.isfinite(result.losses[-1]):
        parts.append("last loss not finite")
    return ", ".join(parts) or "none"


def places(result: Run) -> list[str]:
    """Phase, module and cause of each incident."""
    told = []
    for incident in result.incidents:
        codes = [cause.get("code", "") for cause in incident["causes"][:1]]
        told.append(" ".join(str(part) for part in (incident["phase"], incident["module"], *codes) if part))
    return told


def judge(script: Script, runs: dict[str, Run]) -> dict[str, Any]:
    """The verdicts on the runs of one script."""
    verdict: dict[str, Any] = {"name": script.name}
    if "1" in runs:
        verdict["plain"] = damage(runs["1"]).replace("none", f"ok, {len(runs['1'].losses)} losses")
        verdict["seconds"] = runs["1"].seconds
    for which, key in (("0", "again"), ("2", "identical")):
        if which in runs and "1" in runs:
            verdict[key] = difference(script, runs["1"], runs[which]) or "yes"
    if "2" in runs:
        verdict["false alarms"] = len(runs["2"].incidents)
    if "3" in runs:
        verdict["damage"] = damage(runs["3"])
    if "4" in runs:
        left = damage(runs["4"])
        if runs["4"].not_finite == 0:
            left = "yes" if left == "none" else f"state finite, but {left}"
        verdict["contained"] = left
        verdict["placed"] = places(runs["4"])
        verdict["code"] = runs["4"].code
    return verdict


def table(verdicts: list[dict[str, Any]]) -> str:
    """The verdicts in markdown."""
    columns = ["name", *dict.fromkeys(key for verdict in verdicts for key in verdict if key != "name")]
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    for verdict in verdicts:
        cells = []
        for column in columns:
            value = verdict.get(column, "")
            if isinstance(value, list):
                value = f"{len(value)}: " + "; ".join(dict.fromkeys(value)) if value else "no incident"
            cells.append(str(value).replace("|", "/"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="sources, data and runs go here")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the trial")
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of scripts")
    parser.add_argument("--runs", default="1234", help="which of the runs 0 to 4")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds a run may take")
    parser.add_argument("--json", type=Path, help="write everything here")
    options = parser.parse_args()
    if set(options.runs) - set(LABEL):
        parser.error("--runs takes the digits 0 to 4")
    cache, python = options.cache.resolve(), str(Path(options.python).absolute())
    chosen = [s for s in SCRIPTS if not options.only or any(part in s.name for part in options.only)]
    verdicts, written = [], []
    for script in chosen:
        runs = {which: run(script, which, cache, python, options.limit) for which in sorted(options.runs)}
        verdicts.append(judge(script, runs))
        print(json.dumps(verdicts[-1]), file=sys.stderr, flush=True)
        outcomes = {LABEL[which]: asdict(result) for which, result in runs.items()}
        for outcome in outcomes.values():
            del outcome["stdout"], outcome["stderr"]
        written.append({"script": asdict(script), "verdict": verdicts[-1], "runs": outcomes})
    print(table(verdicts))
    if options.json:
        options.json.write_text(json.dumps(written, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
