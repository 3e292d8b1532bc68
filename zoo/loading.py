"""How a program is found, loaded and run, and when a place is right. Nothing here knows nantrap.

Programs are named by family (`data`), by collection (`two_suspects`), by `controls`, by `scripts`, or by their own
names.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Case = dict[str, Any]
"""What `build()` returns."""

ZOO = Path(__file__).resolve().parent
CONTROLS = "controls"
SCRIPTS = "scripts"
MEASURE_ONLY = "measure only"


@functools.cache
def manifest() -> dict[str, Any]:
    """Families, collections and programs, as in `manifest.json`."""
    read: dict[str, Any] = json.loads((ZOO / "manifest.json").read_text(encoding="utf-8"))
    return read


def families() -> tuple[str, ...]:
    """The families of causes, in the order of their codes."""
    return tuple(manifest()["families"])


def collections() -> tuple[str, ...]:
    """The collections, in the order in which they were written."""
    return tuple(manifest()["collections"])


def collection_of(path: Path) -> str:
    """The collection that a program belongs to."""
    return str(_entry(path)["collection"])


def is_held_back(path: Path) -> bool:
    """Whether a program is for measuring only: what is said of it may be counted, and is not shown."""
    return _entry(path).get("use") == MEASURE_ONLY


def _entry(path: Path) -> dict[str, Any]:
    entry: dict[str, Any] = manifest()["programs"][path.resolve().relative_to(ZOO).as_posix()]
    return entry


def is_script(path: Path) -> bool:
    """Whether it is a whole script, in a folder of its own, and not a program with `build()`."""
    return path.parent.name == SCRIPTS


def is_healthy(path: Path) -> bool:
    """Whether nothing is wrong with a program."""
    return is_control(truth_of_script(path)) if is_script(path) else path.parent.name == CONTROLS


@functools.cache
def truth_of_script(folder: Path) -> dict[str, Any]:
    """The answer of a whole script."""
    return _flat(json.loads((folder / "truth.json").read_text(encoding="utf-8")))


def find(*names: str) -> list[Path]:
    """The programs of these families and collections, or with these names; all that may be read if none is given.

    Programs that are for measuring only come by the name of their collection alone. Whole scripts have to be named too.
    """
    paths = sorted(ZOO / name for name in manifest()["programs"])
    if not names:
        return [path for path in paths if not is_held_back(path) and not is_script(path)]
    found: set[Path] = set()
    for name in names:
        chosen = [path for path in paths if _is_called(path, name)]
        if not chosen:
            known = ", ".join((*families(), CONTROLS, SCRIPTS, *collections()))
            raise ValueError(f"there is no family, collection or program {name!r} in the zoo; it has {known}")
        found.update(chosen)
    return sorted(found)


def sample(paths: Iterable[Path], count: int) -> list[Path]:
    """About so many of these programs, each folder in its share, chosen by the hash of their names."""
    by_folder: dict[str, list[Path]] = {}
    for path in sorted(paths, key=lambda path: hashlib.sha256(path.stem.encode()).digest()):
        by_folder.setdefault(path.parent.name, []).append(path)
    total = sum(map(len, by_folder.values()))
    return sorted(path for own in by_folder.values() for path in own[: max(1, round(count * len(own) / total))])


def _is_called(path: Path, name: str) -> bool:
    if collection_of(path) == name:
        return True
    return not is_held_back(path) and name in (path.stem, path.parent.name)


def load(path: Path) -> Case:
    """Build a program: model, optimizer, batches, loss function, number of steps, and its truth."""
    spec = importlib.util.spec_from_file_location(f"zoo_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # some tools look a function up by the name of its module
    spec.loader.exec_module(module)
    case: Case = module.build()
    case["truth"] = _flat(case["truth"])
    return case


def _flat(truth: dict[str, Any]) -> dict[str, Any]:
    """Other answers that a truth accepts in one form: `also` lists causes, `also_op` operations, and so on.

    Some authors write them as one table by field: `also={"cause": [...], "op": [...]}`.
    """
    also = truth.get("also")
    if not isinstance(also, dict):
        return truth
    fields = {f"also_{field}": tuple(values) for field, values in also.items() if field != "cause"}
    return {**truth, "also": tuple(also.get("cause", ())), **fields}


def is_control(truth: dict[str, Any]) -> bool:
    """Whether the program is healthy."""
    return truth["cause"] in (None, "benign")


def batches(case: Case) -> Iterator[Any]:
    """As many batches as the program has steps."""
    source = case["batches"]
    return itertools.islice(itertools.cycle(source) if isinstance(source, list) else iter(source), case["steps"])


def loss_function(case: Case) -> Callable[[Any], Tensor]:
    """The loss of a batch, under autocast where the program wants it."""

    def compute(batch: Any) -> Tensor:
        dtype = case.get("autocast_dtype")
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            loss: Tensor = case["loss_fn"](case["model"], batch)
            return loss

    return compute


def is_step(truth: dict[str, Any], step: int) -> bool:
    """Whether a step is the one of the truth; any step is, where something fails outside all of them."""
    failed = truth.get("first_bad_step")
    return (failed is None and not is_control(truth)) or step in (failed, *_also(truth, "step"))


def module_of(truth: dict[str, Any]) -> str:
    """The guilty module by its qualified name; `loss` for code outside the model."""
    return "loss" if truth.get("module") in ("", None) or truth.get("where") == "loss_fn" else str(truth["module"])


def is_place(
    truth: dict[str, Any], phase: str | None, module: str | None, op: str | None, node: str | None = None
) -> bool:
    """Whether phase, module and operation are those of the truth, or others that it accepts (`also_op`, ...).

    In backward a truth may name the operation or the forward call whose node it belongs to.
    """
    allowed = {("forward", "state"), ("grad_clip", "backward"), ("optimizer", "state")}
    right_phase = phase == truth["phase"] or (truth["phase"], phase) in allowed or phase in _also(truth, "phase")
    free = truth["phase"] in ("data", "optimizer", "grad_clip") or module_of(truth) == "data"
    right_module = module == module_of(truth) or free or module in _also(truth, "module")
    free = truth["op"] in ("data", "state", "aten.empty") or truth["phase"] == "data"
    ops = {op, f"aten.{operation_of_node(node)}" if node else op}
    return right_phase and right_module and (free or bool(ops & {truth["op"], *_also(truth, "op")}))


def _also(truth: dict[str, Any], what: str) -> tuple[Any, ...]:
    more = truth.get(f"also_{what}") or ()
    return (more,) if isinstance(more, (str, int)) else tuple(more)


@functools.cache
def operation_of_node(node: str) -> str | None:
    """`nll_loss_forward` for the autograd node `NllLossBackward0`; `None` where no aten operation made it."""
    stem = re.sub(r"Backward\d*$", "", node)
    if stem == node:
        return None
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])", "_", stem).lower()
    candidates = (snake, f"_{snake}", f"{snake}_forward", f"_{snake}_forward")
    return next((name for name in candidates if _makes_a_node(name)), None)


def _makes_a_node(name: str) -> bool:
    """Whether an operation of this name is one step of autograd: composite ones fall apart into others."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        qualified = f"aten::{name}" + ("" if overload == "default" else f".{overload}")
        with contextlib.suppress(RuntimeError):  # some overloads exist for TorchScript only
            composite = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd")
            if not composite and not getattr(packet, overload)._schema.is_mutable:
                return True
    return False
