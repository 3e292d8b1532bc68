"""How long the path of a healthy step is: calls of nantrap's own functions, the files they are in, by `sys.setprofile`.

    python benchmarks/path.py [--calls] [--json] [--save]
    python benchmarks/path.py --bad [--save]

A step of a small model without buffers (`mlp`) and of one with BatchNorm (`cnn`), in the three ways to be guarded: two
lines, `attempt`, and `nantrap run`. The journal is on and the policy is the default one. Generator expressions and
comprehensions count as calls where Python makes a frame for them (up to 3.11). Counts do not depend on the machine.

What is imported on the way is not counted.
`--bad` counts the first bad step of a run instead: the logarithm of a softmax that underflows, by `attempt`, until the
incident is written. That is what a reader has to follow who wants to change a diagnosis.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from overhead import CASES
from stored import save
from torch import nn

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

FOLDER = os.path.dirname(nantrap.__file__) + os.sep
WARM = 40
COUNTED = 5
Calls = list[tuple[str, str]]


def counted(step: Callable[[], object]) -> Calls:
    """The calls of one step, after enough steps for everything that is learned or made once.

    The shortest of a few steps: every two seconds the journal is written to disk, which a slow machine may do in the
    very step that is counted.
    """
    for _ in range(WARM):
        step()
    return min((profiled(step) for _ in range(COUNTED)), key=len)


def profiled(step: Callable[[], object]) -> Calls:
    """The calls of one step."""
    calls: Calls = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(FOLDER) and not is_import(frame):
            calls.append((name[len(FOLDER) :], frame.f_code.co_name))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


def is_import(frame: FrameType) -> bool:
    """Whether a frame is the body of a module or of a class, which runs when it is imported, and not of a function."""
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


def ways(make: Any, folder: str) -> dict[str, Calls]:
    """The calls of a step in each of the three ways."""
    torch.manual_seed(0)

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
        model, (inputs, labels), loss_of = make()
        batch = (inputs[:4], labels[:4])  # the counts do not depend on the size of the batch, the time does
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4), batch, loss_of

    def two_lines() -> Calls:
        model, optimizer, batch, loss_of = fresh()
        guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0, run_dir=os.path.join(folder, "a"), quiet=True)

        def step() -> None:
            guard.backward(loss_of(model, batch))
            guard.step()

        return counted(step)

    def attempt() -> Calls:
        model, optimizer, batch, loss_of = fresh()
        guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0, run_dir=os.path.join(folder, "b"), quiet=True)
        return counted(lambda: guard.attempt(lambda b: loss_of(model, b), batch))

    def script() -> Calls:
        with attached(RunSettings(run_dir=os.path.join(folder, "c"), quiet=True)):
            model, optimizer, batch, loss_of = fresh()

            def step() -> None:
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

            return counted(step)

    return {"two lines": two_lines(), "attempt": attempt(), "nantrap run": script()}


def count(folder: str) -> dict[str, dict[str, Calls]]:
    """The calls of every way on every model: by the model's name, then by the way's."""
    return {name: ways(CASES[name], os.path.join(folder, name)) for name in ("mlp", "cnn")}


def first_bad_step(folder: str) -> Calls:
    """The calls of the first bad step of a run: contained, located, explained, written."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    guard = nantrap.Guard(model, torch.optim.AdamW(model.parameters(), lr=1e-3), run_dir=folder, quiet=True)
    batch = torch.randn(4, 4)

    def loss_of(inputs: torch.Tensor) -> torch.Tensor:
        return -torch.log(model(inputs).softmax(-1)).mean()

    for _ in range(WARM):
        guard.attempt(loss_of, batch)
    calls = profiled(lambda: guard.attempt(loss_of, batch * 1000))
    assert guard.last_incident is not None
    assert guard.last_incident.cause is not None
    assert guard.last_incident.cause.proven
    guard.close()
    return calls


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", action="store_true", help="every call by name")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bad", action="store_true", help="the first bad step instead of healthy ones")
    parser.add_argument("--save", action="store_true", help="store the results in benchmarks/results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.bad:
            calls = first_bad_step(folder)
            functions, files = len(set(calls)), len({file for file, _ in calls})
            print(f"first bad step: {len(calls):,} calls of {functions} functions in {files} files")
            if arguments.save:
                save("path", {"first bad step": {"calls": len(calls), "functions": functions, "files": files}})
            return
        found = count(folder)
    rows = {
        model: {way: {"calls": len(calls), "files": len({file for file, _ in calls})} for way, calls in by_way.items()}
        for model, by_way in found.items()
    }
    if arguments.save:
        save("path", rows)
    if arguments.json:
        print(json.dumps({f"{model}, {way}": row for model, by_way in rows.items() for way, row in by_way.items()}))
        return
    for model, by_way in found.items():
        for way, calls in by_way.items():
            print(f"{model:4s} {way:12s} {len(calls):3d} calls in {len({file for file, _ in calls}):2d} files")
            for file, name in calls if arguments.calls else ():
                print(f"    {file} {name}")


if __name__ == "__main__":
    main()
