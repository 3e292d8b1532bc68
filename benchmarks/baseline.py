"""What nantrap says and does, written down whole, so that a change of the code shows what it changes for users.

    python benchmarks/baseline.py                           record build/baseline.json
    python benchmarks/baseline.py --compare                 measure again, and print every difference; exit 1 if any
    python benchmarks/baseline.py --only programs --match softmax      a part, or the programs whose path holds a word

Recorded are, for each program of the zoo in both forms, every incident in full (place, causes, proofs, fixes, trials,
notes), whether the state is finite at the end, and what was raised; the calls of a healthy step; what the commands
print about fixed inputs in each of their formats; the bits that a guarded and a plain run end with.

Programs are known by a hash of their code without docstrings, so that moving or renaming one is no difference. Each
runs in a process of its own. Durations, dates and paths are left out, and so is the digit of sums that depend on the
order of threads: one thread is used.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "build" / "baseline.json"
FORMS = ("attempt", "two lines")
SECONDS = 600
PARTS = ("programs", "path", "commands", "identity")

_TIMES = {"milliseconds", "seconds", "ms", "time", "created", "started", "finished", "duration", "mtime", "size", "pid"}
_PASSING = re.compile(
    r"\b[0-9a-f]{64}\b|\b\d+(\.\d+)? ?(ms|s|min|GB/s|MB/s)\b|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?"
)


# ---- programs


def programs(match: str) -> list[Path]:
    """Every program of the zoo whose path holds a word."""
    found = [*ROOT.glob("zoo/programs/*/*.py"), *ROOT.glob("zoo/controls/*.py")]
    return sorted(path for path in found if match in str(path))


def code_of(path: Path) -> str:
    """A hash of a program's code, whatever its name, its comments and its docstrings are."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                value.value = ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def answer(task: tuple[Path, str]) -> tuple[str, Any]:
    """What one form says about one program, from its first step to its last."""
    path, form = task
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    key = f"{code_of(path)} {form}"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = _run(path, form)
    except Exception as error:
        found = {"not run": f"{type(error).__name__}: {error}"}
    return key, {
        "program": path.stem,
        **plain(found, {str(path): "PROGRAM", path.name: "PROGRAM", path.stem: "PROGRAM"}),
    }


def _run(path: Path, form: str) -> dict[str, Any]:
    """The incidents of a program, and how it ends."""
    import nantrap
    from zoo.loading import batches, load, loss_function
    from zoo.running import state_is_finite

    case = load(path)
    compute = loss_function(case)
    # no time passes by this clock: a busy machine must not change an answer
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(seconds=600, clock=lambda: 0.0))
    guard = nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, policy=policy, quiet=True)
    incidents, raised = [], ""
    for batch in batches(case):
        try:
            if form == "attempt":
                outcome = guard.attempt(compute, batch)
            else:
                guard.backward(compute(batch))
                outcome = guard.step()
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            break
        if outcome.incident is not None:
            incidents.append(outcome.incident.to_dict())
    return {"incidents": incidents, "raised": raised, "finite at the end": state_is_finite(case)}


# ---- commands on fixed inputs


def write_inputs(folder: Path) -> None:
    """Checkpoints, data, logs, settings and a run with an incident, the same bytes each time."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    good = {"model": model.state_dict(), "epoch": 3, "optimizer": torch.optim.AdamW(model.parameters()).state_dict()}
    bad = copy.deepcopy(good)
    bad["model"]["0.weight"][1, 2] = float("nan")
    bad["model"]["1.running_var"][0] = float("inf")
    (folder / "checkpoints").mkdir()
    torch.save(good, folder / "checkpoints/good.pt")
    torch.save(bad, folder / "checkpoints/bad.pt")
    save_file(bad["model"], folder / "checkpoints/bad.safetensors")
    (folder / "checkpoints/torn.pt").write_bytes((folder / "checkpoints/good.pt").read_bytes()[:900])
    (folder / "checkpoints/unsafe.pkl").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    data = folder / "data"
    data.mkdir()
    values = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
    values[7, 3], values[9] = np.nan, 1e30
    np.save(data / "features.npy", values)
    np.savez(data / "pair.npz", x=values[:, :3], labels=np.arange(64) % 5, mask=(np.arange(64)[:, None] % 7 > 0))
    rows = [f"{a:.4f},{b:.4f},{i % 3}" for i, (a, b) in enumerate(values[:, :2])]
    (data / "table.csv").write_text("a,b,label\n" + "\n".join(rows) + "\n1.5,,9\n")
    lines = [json.dumps({"tokens": [i % 11, 3, 4], "label": i % 4 if i != 5 else -1}) for i in range(40)]
    (data / "rows.jsonl").write_text("\n".join([*lines, "{torn"]) + "\n")
    logs = folder / "logs"
    logs.mkdir()
    losses = [f"{3 / (1 + i / 20):.4f} | grad_norm {1 + i % 3 / 10:.2f} | lr 1.00e-04" for i in range(200)]
    falls = [f"step {i} | loss {loss}" for i, loss in enumerate(losses)]
    dead = [f"step {i} | loss nan | grad_norm nan" for i in range(150, 159)]
    (logs / "falls.log").write_text("\n".join(falls) + "\n")
    (logs / "dies.log").write_text("\n".join([*falls[:150], *dead]) + "\n")
    flat = [json.dumps({"step": i, "loss": 2.3 + (i * 7919 % 13) / 1000, "lr": 1e-3}) for i in range(300)]
    (logs / "flat.jsonl").write_text("\n".join(flat) + "\n")
    (folder / "train.yaml").write_text("precision: fp16\nlr: 10.0\nadam_eps: 1e-12\ngrad_clip: 0\nloss_scale: 65536\n")
    stages = "stages:\n" + "".join(
        f"  - name: {name}\n    steps: {steps}\n    loss: {{below: {most}}}\n"
        for name, steps, most in (("start", "1-50", 3.5), ("end", "51-200", 0.1))
    )
    (folder / "stages.yaml").write_text(stages)
    (folder / "train.py").write_text(_SCRIPT)
    project = folder / "project"
    project.mkdir()
    for path in programs(""):
        (project / f"{code_of(path)}.py").write_bytes(path.read_bytes())


_SCRIPT = """import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(6, 4)
    if step == 12:
        x[2] = -100
    probs = model(x).softmax(-1)
    if step == 12:
        probs = probs * 0
    loss = -probs.log()[:, 0].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")
"""

INCIDENT = "runs/one/incidents/000012-r0"
COMMANDS: tuple[str, ...] = (
    "run --run-dir runs/one train.py",
    *(f"report runs/one --format {form} -o - --force" for form in ("md", "json", "junit", "github", "sarif")),
    *(f"report {INCIDENT} --format {form} -o - --force" for form in ("html", "md", "json", "github", "sarif")),
    "check runs/one", "check runs/one --json",
    *(f"check logs/{name} {flag}" for name in ("falls.log", "dies.log", "flat.jsonl") for flag in ("", "--json")),
    "check logs/falls.log --expect stages.yaml", "check logs/falls.log --expect stages.yaml --json",
    "audit checkpoints", "audit checkpoints --json", "audit checkpoints/bad.safetensors --strict",
    *(f"data data --classes 5 --vocab 10 {flag}" for flag in ("", "--json", "--dtype float16")),
    *(f"doctor train.yaml train.py --format {form}" for form in ("text", "json", "sarif", "github")),
    "doctor train.yaml --suggest conservative", "doctor project --format json",
    "explain", "explain NT203", "explain NT203 --json", "explain NT404", "explain NT863", "explain NT158",
    "explain nothing", "demo", f"replay {INCIDENT}", "plot logs/falls.log",
    "preflight nothing:here", "audit missing.pt",
)  # fmt: skip


def commands() -> dict[str, Any]:
    """What the commands print about fixed inputs, with their exit codes."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_inputs(folder)
        settings = {"COLUMNS": "80", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        for command in COMMANDS:
            done = subprocess.run(
                [sys.executable, "-m", "nantrap", *command.split()], cwd=folder, env={**os.environ, **settings},
                capture_output=True, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            known = {str(folder): "FOLDER", str(ROOT): "ROOT", folder.name: "FOLDER"}
            out = {"exit": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
            found[command] = plain(out, known)
        for path in sorted((folder / "runs/one").rglob("*.json*")):
            found[f"file {path.relative_to(folder)}"] = plain(path.read_text(), known)
    return found


# ---- the healthy step


def identity() -> dict[str, Any]:
    """A hash of what each way to train ends with: losses, weights, optimizer state."""
    import torch
    from overhead import CASES

    import nantrap

    torch.set_num_threads(1)
    found = {}
    for name in ("mlp", "cnn"):
        for way in ("plain", *FORMS):
            torch.manual_seed(0)
            model, (inputs, labels), loss_of = CASES[name]()
            batch = (inputs[:4], labels[:4])
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            guard = nantrap.Guard(model, optimizer, quiet=True) if way != "plain" else None
            digest = hashlib.sha256()
            for _ in range(30):
                loss = train_one(way, guard, optimizer, lambda b, m=model, f=loss_of: f(m, b), batch)
                digest.update(repr(loss).encode())
            for tensor in [*model.state_dict().values(), *_tensors_of(optimizer)]:
                digest.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
            found[f"{name} {way}"] = digest.hexdigest()[:16]
        same = {found[f"{name} {way}"] for way in ("plain", *FORMS)}
        found[f"{name} is bit-identical"] = len(same) == 1
    return found


def train_one(way: str, guard: Any, optimizer: Any, compute: Any, batch: Any) -> float:
    """One step; its loss."""
    if way == "attempt":
        return float(guard.attempt(compute, batch).loss)
    loss = compute(batch)
    value = float(loss.detach())
    if way == "plain":
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        guard.backward(loss)
        guard.step()
    return value


def _tensors_of(optimizer: Any) -> list[Any]:
    """The tensors of an optimizer's state, in the order of its parameters."""
    entries = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"] if p in optimizer.state]
    return [value for entry in entries for value in entry.values() if hasattr(value, "numel")]


def path_lengths() -> dict[str, Any]:
    """The calls of a healthy step, and the files they are in."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "path.py"), "--json"],
        capture_output=True, text=True, timeout=SECONDS, check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


# ---- recording and comparing


def plain(value: Any, known: Mapping[str, str]) -> Any:
    """A value without what differs between two runs of the same code: paths, durations, dates."""
    if isinstance(value, dict):
        return {k: plain(v, known) for k, v in value.items() if k not in _TIMES}
    if isinstance(value, (list, tuple)):
        return [plain(each, known) for each in value]
    if not isinstance(value, str):
        return value
    with contextlib.suppress(ValueError):
        if value.startswith("{"):
            return plain(json.loads(value), known)
    lines = value.splitlines()
    if len(lines) > 1 and all(line.startswith("{") for line in lines):  # a journal
        return [plain(line, known) for line in lines]
    for text, name in known.items():
        value = value.replace(text, name)
    return _PASSING.sub("VARIES", value)


def measure(parts: list[str], match: str, processes: int) -> dict[str, Any]:
    """Every part that was asked for."""
    found: dict[str, Any] = {}
    if "path" in parts:
        found["path"] = path_lengths()
    if "identity" in parts:
        found["identity"] = identity()
    if "commands" in parts:
        found["commands"] = commands()
    if "programs" in parts:
        tasks = [(path, form) for path in programs(match) for form in FORMS]
        sys.path.insert(0, str(ROOT))
        import zoo.running  # noqa: F401  imported once, for all processes

        answers: dict[str, Any] = {}
        with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
            for number, (key, said) in enumerate(pool.imap_unordered(answer, tasks), 1):
                answers[key] = said
                print(f"\r{number} of {len(tasks)} programs", end="", file=sys.stderr)
        print(file=sys.stderr)
        found["programs"] = dict(sorted(answers.items()))
    return found


def differences(old: Any, new: Any, where: tuple[str, ...] = ()) -> Iterator[str]:
    """Every place at which two records differ."""
    place = " > ".join(where)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key == "program":
                continue
            shown = str(new.get(key, old.get(key)).get("program")) + key[16:] if where == ("programs",) else str(key)
            if key not in new:
                yield f"{place} > {shown}: gone"
            elif key not in old:
                yield f"{place} > {shown}: new"
            else:
                yield from differences(old[key], new[key], (*where, shown))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, (*where, str(number)))
    elif isinstance(old, str) and isinstance(new, str) and old != new and "\n" in old + new:
        for one, other in zip(*(text.splitlines() for text in (old, new)), strict=False):
            if one != other:
                yield f"{place}:\n    - {one}\n    + {other}"
                return
        yield f"{place}: {len(old.splitlines())} lines, now {len(new.splitlines())}"
    elif old != new:
        yield f"{place}:\n    - {old}\n    + {new}"


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true", help="print what differs from the recorded baseline")
    parser.add_argument("--file", type=Path, default=FILE, help="the recorded baseline (default: build/baseline.json)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--match", default="", help="only programs whose path holds this word")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.compare and not arguments.file.exists():
        parser.error(f"{arguments.file} does not exist: record it first, from the code that you compare with")
    new = measure(arguments.only, arguments.match, arguments.processes)
    if not arguments.compare:
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        old = json.loads(arguments.file.read_text()) if arguments.file.exists() else {}
        arguments.file.write_text(json.dumps({**old, **new}))
        print(f"recorded {', '.join(new)} in {arguments.file}")
        return 0
    old = json.loads(arguments.file.read_text())
    if arguments.match:
        old["programs"] = {key: said for key, said in old["programs"].items() if key in new.get("programs", {})}
    found = list(differences({part: old[part] for part in new if part in old}, new))
    print("\n".join(found) or "no difference")
    print(f"{len(found)} differences in {', '.join(new)}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
