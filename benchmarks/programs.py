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

Case = dict[str, Any]


def load(path: Path) -> Case:
    spec = importlib.util.spec_from_file_location(f"zoo_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case: Case = module.build()
    return case


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
