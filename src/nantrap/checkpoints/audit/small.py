"""Least and greatest value of thousands of small tensors in a few calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from nantrap.checkpoints.audit.contents import StoredTensor
from nantrap.checkpoints.audit.tally import Tally, TensorScan

_WIDER = {
    # numpy knows no bfloat16 and is slow with float16; both are exact in float32
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}


class Placed(NamedTuple):
    """A tensor whose bytes lie at `begin` to `end` of a buffer."""

    tensor: StoredTensor
    begin: int
    end: int


def look_at_many(buffer: Any, placed: Sequence[Placed]) -> list[TensorScan]:
    """One result for each, in the same order. Exact counts only for those that raise the alarm."""
    results: dict[int, TensorScan] = {}
    for dtype in {item.tensor.dtype for item in placed}:
        for run in _runs(placed, dtype):
            for number, (low, high) in zip(run, _extremes(buffer, [placed[n] for n in run], dtype), strict=True):
                if math.isfinite(low) and math.isfinite(high):
                    results[number] = TensorScan(placed[number].tensor, low, high)
    for number, item in enumerate(placed):
        if number not in results:
            tally = Tally(item.tensor)
            tally.look(buffer, item.begin, (item.end - item.begin) // item.tensor.dtype.itemsize, 0)
            results[number] = tally.result()
    return [results[number] for number in range(len(placed))]


def _runs(placed: Sequence[Placed], dtype: torch.dtype) -> Iterator[list[int]]:
    """Numbers of tensors of one dtype that ascend without overlap and lie a whole number of values apart."""
    if dtype not in _WIDER:
        return
    run: list[int] = []
    for number, item in enumerate(placed):
        if item.tensor.dtype != dtype:
            continue
        if run and (item.begin < placed[run[-1]].end or (item.begin - placed[run[0]].begin) % dtype.itemsize):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _extremes(buffer: Any, run: Sequence[Placed], dtype: torch.dtype) -> list[tuple[float, float]]:
    """`reduceat` reduces between each index and the next: the tensors, and what lies between them, to be dropped."""
    base, end = run[0].begin, run[-1].end
    count = (end - base) // dtype.itemsize
    values = torch.frombuffer(buffer, dtype=dtype, count=count, offset=base).to(_WIDER[dtype]).numpy()
    edges = [(edge - base) // dtype.itemsize for item in run for edge in (item.begin, item.end)][:-1]
    with np.errstate(invalid="ignore"):  # the headers between the tensors are no numbers
        lows = np.minimum.reduceat(values, edges)[::2]
        highs = np.maximum.reduceat(values, edges)[::2]
    return list(zip(lows.tolist(), highs.tolist(), strict=True))
