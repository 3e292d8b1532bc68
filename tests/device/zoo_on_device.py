"""The programs of the zoo on the simulated device: do they get the same answers as on the CPU?

    cd tests && python -m device.zoo_on_device [--form attempt] [FAMILY or PROGRAM ...]

Each program runs twice, on the CPU and on the device, with the same values. A table names every program whose incident
differs in step, phase, module, operation, best cause or proof, and those that do not run on a device: most of these
make tensors on the CPU by themselves.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import nantrap
from device import simulated
from nantrap import Diagnosis, Policy
from zoo.loading import Case, batches, find, load, loss_function

_NOT_FOR_A_DEVICE = (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError)


class Told(NamedTuple):
    """What an incident says, as far as two machines can agree; `step` is -1 where there was none."""

    step: int = -1
    phase: str = ""
    module: str | None = None
    op: str | None = None
    cause: str | None = None
    proven: bool = False


def run(path: Path, form: str, device: str, *, sync: Any = "step") -> Told:
    """Run one program until its first incident."""
    case = load(path)
    if device == "sim":
        case = _moved(case)
    compute = loss_function(case) if device == "cpu" else _loss_on_device(case)
    # no time passes by this clock: a busy machine must not change an answer
    policy = Policy(sync=sync, diagnosis=Diagnosis(seconds=600, clock=lambda: 0.0))
    with nantrap.Guard(case["model"], case["optimizer"], policy=policy, quiet=True) as guard:
        for batch in batches(case):
            batch = _on(batch) if device == "sim" else batch
            if form == "attempt":
                guard.attempt(compute, batch)
            else:
                loss = compute(batch)
                guard.backward(loss)
                guard.step()
            if guard.last_incident is not None:
                break
    return told(guard.last_incident)


def told(incident: nantrap.Incident | None) -> Told:
    """The comparable part of an incident."""
    if incident is None:
        return Told()
    cause = incident.cause
    slug, proven = (None, False) if cause is None else (cause.slug, cause.proven)
    return Told(incident.step, incident.phase, incident.module, incident.op, slug, proven)


def compare(path: Path, form: str, *, sync: Any = "step") -> tuple[str, str]:
    """`same`, `differs` or `not run`, and in words what is different or why it did not run."""
    torch.manual_seed(0)
    here = run(path, form, "cpu")
    torch.manual_seed(0)
    try:
        there = run(path, form, "sim", sync=sync)
    except _NOT_FOR_A_DEVICE as error:
        return "not run", f"{type(error).__name__}: {str(error).splitlines()[0][:110]}"
    fields = [f"{name}: {a} / {b}" for name, a, b in zip(Told._fields, here, there, strict=True) if a != b]
    return ("differs", "; ".join(fields)) if fields else ("same", "")


def _moved(case: Case) -> Case:
    """The same program with its model on the device. The optimizer keeps its parameters, which move with the model."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        case["model"].to("sim")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    for state in case["optimizer"].state.values():
        state.update({name: _on(value) for name, value in state.items()})
    return case


def _on(batch: Any) -> Any:
    return tree_map(lambda leaf: leaf.to("sim") if isinstance(leaf, Tensor) else leaf, batch)


def _loss_on_device(case: Case) -> Any:
    def compute(batch: Any) -> Tensor:
        dtype = case.get("autocast_dtype")
        with torch.autocast("sim", dtype=dtype or torch.float16, enabled=bool(dtype)):
            loss: Tensor = case["loss_fn"](case["model"], batch)
            return loss

    return compute


def main() -> None:
    """Print a table of what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=("attempt", "two lines"), default="attempt")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    simulated.start()
    counts: Counter[str] = Counter()
    for path in find(*given.names):
        verdict, words = compare(path, given.form)
        counts[verdict] += 1
        if words:
            print(f"{verdict:8} {path.parent.name}/{path.stem}: {words}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
