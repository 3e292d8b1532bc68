"""Programs that go non-finite and know their own answer: how the benchmarks load and feed them (see tests/zoo)."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nantrap.locate.nodes import operation_name

Case = dict[str, Any]


def load(path: Path) -> Case:
    spec = importlib.util.spec_from_file_location(f"zoo_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
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


def batches(case: Case) -> Iterator[Any]:
    source = case["batches"]
    return itertools.islice(itertools.cycle(source) if isinstance(source, list) else iter(source), case["steps"])


def loss_function(case: Case) -> Callable[[Any], Tensor]:
    def compute(batch: Any) -> Tensor:
        dtype = case.get("autocast_dtype")
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            loss: Tensor = case["loss_fn"](case["model"], batch)
            return loss

    return compute


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
    ops = {op, f"aten.{operation_name(node)}" if node else op}
    return right_phase and right_module and (free or bool(ops & {truth["op"], *_also(truth, "op")}))


def _also(truth: dict[str, Any], what: str) -> tuple[str, ...]:
    more = truth.get(f"also_{what}") or ()
    return (more,) if isinstance(more, str) else tuple(more)
