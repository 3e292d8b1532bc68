"""The programs of the zoo on the simulated device: do they get the same answers as on the CPU?

    PYTHONPATH=tests python -m device.zoo_on_device [--form attempt | "two lines"] [--save] [FAMILY or PROGRAM ...]

Each program runs on the CPU and on the device, with the same values. Many make tensors by themselves, on the CPU; on a
GPU their authors would have written `device=` there. Those are run again in a loss function that makes them on the
device, and if that is not enough, built there as a whole: a model that is moved after its state was loaded does not
show any more what the file had left out.

`zoo_on_device.json` names every program whose incident differs in step, phase, module, operation, best cause or proof
in each of the three ways, and those that run in none, by reason. What is not as it says there is printed, and the
command ends with 1; `--save` writes what is new into it, without a reason.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
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


_BY_ADDRESS = frozenset({"activation_bit_flip_once", "weight_bit_flip_between_steps"})
"""Programs that flip a bit at an address of the host: on a device that is a segmentation fault, as it should be."""

FORMS = ("attempt", "two lines")
EXPECTED = Path(__file__).with_suffix(".json")
NO_REASON = "not explained"
HERE, MOVED, MAKES_THERE, BUILT_THERE = "here", "moved", "makes its tensors there", "built there"


def run(path: Path, form: str, way: str, *, sync: Any = "step") -> Told:
    """Run one program until its first incident: on the CPU (`here`), or on the device in one of three ways."""
    with _MadeThere() if way == BUILT_THERE else contextlib.nullcontext():
        case = load(path)
        if way != HERE:
            _move(case)
        compute = loss_function(case) if way == HERE else _loss_on_device(case, makes_there=way == MAKES_THERE)
        # no time passes by this clock: a busy machine must not change an answer
        policy = Policy(sync=sync, diagnosis=Diagnosis(seconds=600, clock=lambda: 0.0))
        with nantrap.Guard(case["model"], case["optimizer"], policy=policy, quiet=True) as guard:
            for batch in batches(case):
                batch = batch if way == HERE else _on(batch)
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
    """`same`, `differs` or `not run`, and in words what is different, or in which way it ran if not by moving it."""
    if path.stem in _BY_ADDRESS:
        return "not run", "writes to memory by its address, which the host cannot"
    torch.manual_seed(0)
    here, differences, errors = run(path, form, HERE), [], []
    for way in (MOVED, MAKES_THERE, BUILT_THERE):
        torch.manual_seed(0)
        try:
            there = run(path, form, way, sync=sync)
        except _NOT_FOR_A_DEVICE as error:
            errors.append(f"{type(error).__name__}: {str(error).splitlines()[0][:110]}")
            continue
        fields = [f"{name}: {a} / {b}" for name, a, b in zip(Told._fields, here, there, strict=True) if a != b]
        if not fields:
            return "same", "" if way == MOVED else way
        differences.append(f"{way}: {'; '.join(fields)}")
    return ("differs", differences[0]) if differences else ("not run", errors[0])


class _MadeThere(TorchFunctionMode):
    """What makes a tensor makes it on the device, also where it draws from a generator of the host."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        if kwargs.get("generator") is not None:
            return function(*args, **kwargs).to("sim")
        return function(*args, **{**kwargs, "device": "sim"})


def _move(case: Case) -> None:
    """Move a model to the device. The optimizer keeps its parameters, which move with the model."""
    model = case["model"]
    if any(tensor.is_cpu for tensor in (*model.parameters(), *model.buffers())):  # a hook of a parameter would stay
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.to("sim")
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)
    for state in case["optimizer"].state.values():
        state.update({name: _on(value) for name, value in state.items()})


def _on(batch: Any) -> Any:
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(
            batch, **{field.name: _on(getattr(batch, field.name)) for field in dataclasses.fields(batch)}
        )
    return tree_map(lambda leaf: leaf.to("sim") if isinstance(leaf, Tensor) else leaf, batch)


def _loss_on_device(case: Case, *, makes_there: bool) -> Any:
    def compute(batch: Any) -> Tensor:
        dtype = case.get("autocast_dtype")
        default = torch.device("sim") if makes_there else contextlib.nullcontext()
        with default, torch.autocast("sim", dtype=dtype or torch.float16, enabled=bool(dtype)):
            loss: Tensor = case["loss_fn"](case["model"], batch)
            return loss

    return compute


def reasons() -> dict[str, dict[str, dict[str, list[str]]]]:
    """What is stored: reason, program, form, and there the verdict and its words."""
    stored: dict[str, Any] = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    return stored


def expected(form: str) -> dict[str, tuple[str, str]]:
    """What `compare` says of the programs that do not get the same answer, by name."""
    listed = {name: forms.get(form) for programs in reasons().values() for name, forms in programs.items()}
    return {name: (said[0], said[1]) for name, said in listed.items() if said}


def save(form: str, found: dict[str, tuple[str, str]]) -> None:
    """Store what was found of these programs; a reason that is known stays."""
    stored = reasons()
    known = {name: reason for reason, programs in stored.items() for name in programs}
    said = {name: dict(forms) for programs in stored.values() for name, forms in programs.items()}
    for name, (verdict, words) in found.items():
        said.setdefault(name, {}).pop(form, None)
        if verdict != "same":
            said[name][form] = [verdict, words]
    sorted_by_reason: dict[str, Any] = {reason: {} for reason in stored}
    for name in sorted(name for name in said if said[name]):
        sorted_by_reason.setdefault(known.get(name, NO_REASON), {})[name] = said[name]
    EXPECTED.write_text(json.dumps({k: v for k, v in sorted_by_reason.items() if v}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Print what is not as it is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default=FORMS[0])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    simulated.start()
    stored = expected(given.form)
    found: dict[str, tuple[str, str]] = {}
    new = 0
    for path in find(*given.names):
        name = f"{path.parent.name}/{path.stem}"
        found[name] = verdict, words = compare(path, given.form)
        if given.save:
            save(given.form, {name: found[name]})
        if stored.get(name, ("same", "")) != (verdict, words if verdict != "same" else ""):
            new += 1
            print(f"{name}: {verdict}; {words}; stored: {stored.get(name, ('same', ''))}", flush=True)
    counts = Counter(verdict for verdict, _ in found.values())
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), file=sys.stderr)
    return int(new > 0 and not given.save)


if __name__ == "__main__":
    sys.exit(main())
