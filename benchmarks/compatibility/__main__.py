"""Unmodified training scripts of other people, with and without `nantrap run`, healthy and with one NaN.

    python benchmarks/compatibility --cache DIR [--python PYTHON] [--only NAME ...] [--runs 1234] [--json FILE]
    python benchmarks/compatibility --programs FOLDER --cache DIR ...

With `--programs` the scripts of programs.py are run, from clones in FOLDER: FOLDER/nanoGPT, with its commit in
`.commit` or in its git directory. What FILE has already is not run again.

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
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from programs import PROGRAMS
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


def commit(clone: Path) -> str:
    """The first digits of the commit that a clone has."""
    noted = clone / ".commit"
    if noted.exists():
        return noted.read_text()[:7]
    return subprocess.check_output(["git", "-C", str(clone), "rev-parse", "--short=7", "HEAD"], text=True).strip()


def environment(cache: Path, *paths: Path) -> dict[str, str]:
    """One thread, no network, fixed hashes, and sitecustomize.py in front."""
    given = os.environ.get("PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPAT_", "NANTRAP_"))}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), *map(str, paths), *([given] if given else [])]),
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
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


def invocation(script: Script, cache: Path, python: str, place: Path) -> list[str]:
    """The script and its arguments, as they follow `python` or `nantrap run`."""
    if script.repository:
        start = [str(place / script.path)]
        if script.ranks:
            start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(script.ranks), *start]
    elif script.module:
        start = ["-m", script.module]
    elif script.command:
        start = [str(Path(python).parent / script.command)]
    else:
        start = [str(source(script, cache, python) / script.path)]
    return [*start, *script.arguments.split()]


def run(script: Script, which: str, fault: str, options: argparse.Namespace) -> Run:
    """Run the script in a fresh folder, which has the same name in all runs and is kept under the run's own."""
    poisoned, guarded = which in "34", which in "24"
    cache, python = options.cache, options.python
    home = cache / "runs" / script.name.replace(" ", "-")
    label = LABEL[which] + (f"-{fault.replace(':', '-')}" if poisoned and fault else "")
    place, kept, notes = home / "now", home / label, home / f"{label}.notes"
    for old in (place, kept, notes):
        shutil.rmtree(old, ignore_errors=True)
    notes.mkdir(parents=True)
    where = script.folder
    if script.repository:
        where = str(Path(script.path).parent)
        shutil.copytree(options.programs / script.repository.rpartition("/")[2], place)
    data = made(script.bad_data if poisoned and script.bad_data else script.data, cache, python)
    shutil.copytree(data, place / script.data_at, dirs_exist_ok=True)
    (place / where).mkdir(parents=True, exist_ok=True)
    surroundings = environment(cache, place) | {
        "COMPAT_WEIGHTS": str(notes / "weights.json"),
        "COMPAT_PRETEND": script.pretend,
    }
    if poisoned and fault:
        surroundings["COMPAT_POISON"] = fault
    front = ["-m", "nantrap", "run", "--run-dir", str(notes / "guard")] if guarded else []
    command = [python, *front, *invocation(script, cache, python, place)]
    started = time.perf_counter()
    with (notes / "stdout").open("wb") as out, (notes / "stderr").open("wb") as err:
        started_process = subprocess.Popen(
            command, cwd=place / where, env=surroundings, stdout=out, stderr=err, start_new_session=True
        )
        try:
            code: int | None = started_process.wait(options.limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(started_process.pid, signal.SIGKILL)
            started_process.wait()
    seconds = time.perf_counter() - started
    place.rename(kept)
    stdout, stderr = ((notes / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    found = sorted((notes / "guard").glob("**/incidents/*/incident.json"))
    return Run(
        code=code,
        seconds=round(seconds, 1),
        losses=[float(number) for number in re.findall(script.loss, stdout + "\n" + stderr)],
        stdout=stdout,
        stderr=stderr,
        weights=weights_of(notes),
        incidents=[json.loads(path.read_text()) for path in found],
    )


def weights_of(notes: Path) -> dict[str, Any] | None:
    """What was recorded of the optimizers' tensors, of all processes together."""
    recorded = [json.loads(path.read_text()) for path in sorted(notes.glob("weights.json*"))]
    recorded = [each for each in recorded if each["optimizers"]]
    if not recorded:
        return None
    parts = ("weights", "buffers", "state")
    return {"optimizers": [name for each in recorded for name in each["optimizers"]]} | {
        part: {
            "not_finite": sum(each[part]["not_finite"] for each in recorded),
            "sha256": sorted(each[part]["sha256"] for each in recorded),
        }
        for part in parts
    }


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
    mine, theirs = (steady(script, without_ours(each.stderr)) for each in (one, other))
    if script.repository and mine != theirs:
        return f"stderr: {next((line for line in theirs if line not in mine), 'lines are missing')}"
    return ""


def without_ours(text: str) -> str:
    """What a program wrote to stderr, without the lines that begin with our name."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("nantrap: "))


def raised(result: Run) -> str:
    """The exception that ended a run, by its class."""
    found = re.findall(
        r"^(?:\[rank\d+\]: ?)?([A-Za-z_.]*(?:Error|Exception|Interrupt)): ?(.*)$", result.stderr, re.MULTILINE
    )
    ours = re.findall(r"^nantrap: .*stopped the run", result.stderr, re.MULTILINE)
    if result.code and ours:
        return "stopped by the guard"
    return found[-1][0].rpartition(".")[2] if result.code and found else ""


def damage(result: Run) -> str:
    """What a NaN did to a run, in a few words."""
    parts = []
    if result.code != 0:
        end = f" ({raised(result)})" if raised(result) else ""
        parts.append("time limit" if result.code is None else f"exit {result.code}{end}")
    if result.not_finite:
        parts.append(f"{result.not_finite} values not finite")
    if result.losses and not math.isfinite(result.losses[-1]):
        parts.append("last loss not finite")
    return ", ".join(parts) or "none"


def places(result: Run) -> list[str]:
    """Phase, module and cause of each incident."""
    told = []
    for incident in result.incidents:
        codes = [cause.get("code", "") + ("" if cause["proven"] else "?") for cause in incident["causes"][:1]]
        told.append(" ".join(str(part) for part in (incident["phase"], incident["module"], *codes) if part))
    return told


def judge(script: Script, runs: dict[str, Run]) -> dict[str, Any]:
    """The verdicts on the runs of one script; a run with a fault is named by its number and the fault."""
    verdict: dict[str, Any] = {"name": script.name}
    if "1" in runs:
        verdict["plain"] = damage(runs["1"]).replace("none", f"ok, {len(runs['1'].losses)} losses")
        verdict["seconds"] = runs["1"].seconds
    for which, key in (("0", "again"), ("2", "identical")):
        if which in runs and "1" in runs:
            verdict[key] = difference(script, runs["1"], runs[which]) or "yes"
    if "2" in runs:
        verdict["false alarms"] = len(runs["2"].incidents)
    for name, result in runs.items():
        which, _, fault = name.partition(" ")
        if which == "3":
            verdict[f"damage {fault}".strip()] = damage(result)
        elif which == "4":
            left = damage(result)
            if result.not_finite == 0:
                left = "yes" if left == "none" else f"state finite, but {left}"
            verdict[f"contained {fault}".strip()] = left
            verdict[f"placed {fault}".strip()] = places(result)
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


def table_of_programs(written: list[dict[str, Any]]) -> str:
    """A row for each fault of each program that runs without one: what became of it without and with nantrap."""
    lines = [
        "| program, commit | same end | fault | without nantrap | under `nantrap run` | codes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in written:
        verdict, script, runs = each["verdict"], each["script"], each["runs"]
        if runs["1"]["code"]:
            continue
        owner, _, kind = script["name"].rpartition(" ")
        named = f" ({kind})" if owner in ("makemore", "nanoGPT", "examples word_language_model") else ""
        first = f"{script['repository'].rpartition('/')[2]} {verdict['commit']} `{script['path']}`{named}"
        same = "yes" if runs["1"]["weights"] == runs["2"]["weights"] else "no"
        for fault in (fault for fault in script["poison"].split() if f"placed {fault}" in verdict):
            codes = ", ".join(dict.fromkeys(place.rpartition(" ")[2] for place in verdict[f"placed {fault}"]))
            ends = (in_words(verdict[f"{kind} {fault}"]) for kind in ("damage", "contained"))
            lines.append(f"| {' | '.join((first, same, fault, *ends, codes or 'none'))} |")
            first = same = ""
    return "\n".join(lines)


def in_words(end: str) -> str:
    """How a run ended, for the table."""
    end = end.removeprefix("state finite, but ").replace("stopped by the guard", "stopped")
    end = re.sub(r"(\d+) values not finite", lambda found: f"{int(found[1]):,} bad", end)
    if end in ("yes", "none"):
        return "to its end"
    return end.removesuffix(", last loss not finite").replace("last loss not finite", "to its end, loss bad")


def main() -> int:
    """Run what is asked for, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="sources, data and runs go here")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the trial")
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of scripts")
    parser.add_argument("--runs", default="1234", help="which of the runs 0 to 4")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds a run may take")
    parser.add_argument("--json", type=Path, help="write everything here, after each script")
    parser.add_argument("--programs", type=Path, help="the folder with clones: run the scripts of programs.py")
    parser.add_argument("--most-faults", type=int, help="of each script, from the first one on")
    options = parser.parse_args()
    if set(options.runs) - set(LABEL):
        parser.error("--runs takes the digits 0 to 4")
    options.cache, options.python = options.cache.resolve(), str(Path(options.python).absolute())
    known = PROGRAMS if options.programs else SCRIPTS
    chosen = [s for s in known if not options.only or any(part in s.name for part in options.only)]
    written = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    for script in chosen:
        if any(each["script"]["name"] == script.name for each in written):
            continue
        runs = {}
        for which in sorted(options.runs):
            faults = script.poison.split()[: options.most_faults] or [""]
            for fault in faults if which in "34" else [""]:
                runs[f"{which} {fault}".strip()] = run(script, which, fault, options)
        verdict = judge(script, runs)
        if script.repository:
            verdict["commit"] = commit(options.programs / script.repository.rpartition("/")[2])
        print(json.dumps(verdict), file=sys.stderr, flush=True)
        outcomes = {name: asdict(result) for name, result in runs.items()}
        for outcome in outcomes.values():
            del outcome["stdout"], outcome["stderr"]
        written.append({"script": asdict(script), "verdict": verdict, "runs": outcomes})
        if options.json:
            options.json.write_text(json.dumps(written, indent=1))
    verdicts = [each["verdict"] for each in written]
    print(table_of_programs(written) if options.programs else table(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
