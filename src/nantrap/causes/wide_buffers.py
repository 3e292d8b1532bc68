"""A buffer in float16 that the step itself wrote beyond the range of float16, and the step with it in float32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from nantrap.causes.claim import Claim
from nantrap.causes.harness import Result, run_step
from nantrap.causes.reference import recomputed
from nantrap.thresholds import FLOAT16_MAX

if TYPE_CHECKING:
    from nantrap.causes.case import Case
    from nantrap.incident import Trial


class Overflowed(NamedTuple):
    """The buffer, and the largest finite value that was written into it."""

    name: str
    value: float


def overflowed_buffer(case: Case) -> Overflowed | None:
    """The float16 buffer into which the guilty operation wrote a finite value above the limit, if that is what it did.

    Trials in float32 do not widen memory that is written, so they say nothing about such a buffer.
    """
    if case.phase != "forward" or case.dtype != "float16" or case.trace is None or case.capture is None:
        return None
    wide = recomputed(case, "float32")
    if wide is None or not bool(wide.isfinite().all()) or float(wide.abs().max()) <= FLOAT16_MAX:
        return None
    for name, buffer in case.failure.root.named_buffers():
        writer = case.trace.writer_of(buffer)
        if buffer.dtype == torch.float16 and writer is not None and writer.index == case.capture.op.index:
            return Overflowed(name, float(wide.abs().max()))
    return None


def too_narrow(case: Case, written: Overflowed, summary: str, instead: str) -> Claim:
    """What such a buffer is called, with the value that was written, and the step with it in float32.

    Args:
        case: the failure.
        written: the buffer.
        summary: what it is.
        instead: how it should be kept.
    """
    return Claim(
        "measured",
        summary,
        (f"{case.location.op} wrote {written.value:.5g} into {written.name}; float16 ends at {FLOAT16_MAX:g}",),
        trial=_with_wide_buffer(case, written.name),
        shows=f"with {written.name} in float32 the step is finite",
        help=instead,
    )


def _with_wide_buffer(case: Case, name: str) -> Trial | None:
    """The step with one buffer kept in float32; `None` if the step cannot be run again."""
    if not case.failure.repeatable:
        return None

    @contextlib.contextmanager
    def widened() -> Iterator[None]:
        """The module with the wide buffer, while the step runs."""
        path, _, last = name.rpartition(".")
        module = case.failure.root.get_submodule(path)
        kept = getattr(module, last)
        setattr(module, last, kept.float())
        try:
            yield
        finally:
            setattr(module, last, kept)

    def experiment() -> Result:
        return run_step(case, around=widened())

    return case.lab.run(f"wide:{name}", f"{name} kept in float32", experiment, harness="step")
