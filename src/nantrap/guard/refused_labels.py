"""Labels that PyTorch itself refuses: `IndexError: Target 7 is out of bounds` ends a script before there is a loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import FrameType

from torch import Tensor

_LOSSES = ("cross_entropy", "nll_loss")


def refused_in_words(error: BaseException) -> str:
    """Which value a loss or an embedding refused, and what it accepts; empty for any other exception."""
    if not isinstance(error, IndexError):
        return ""
    with contextlib.suppress(Exception):  # after an assertion on a GPU nothing can be read
        for frame in _functional(error):
            if words := _refused(frame):
                return f"{words} (NT102 label_out_of_range)"
    return ""


def _functional(error: BaseException) -> Iterator[FrameType]:
    """The frames of functions of `torch.nn.functional` through which the exception went."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__") == "torch.nn.functional":
            yield step.tb_frame
        step = step.tb_next


def _refused(frame: FrameType) -> str:
    """What one function refused; empty if what it was given lies in its range."""
    name, given = frame.f_code.co_name, frame.f_locals
    if name in _LOSSES:
        scores, labels = given["input"], given["target"]
        ignored = given.get("ignore_index", -100)
        return _outside(labels, scores.shape[min(1, scores.dim() - 1)], name, "classes", ignored)
    if name == "embedding":
        return _outside(given["input"], given["weight"].shape[0], name, "rows", None)
    return ""


def _outside(labels: Tensor, count: int, name: str, what: str, ignored: int | None) -> str:
    """The first value outside of [0, count), with its sample."""
    bad = (labels < 0) | (labels >= count)
    if ignored is not None:
        bad &= labels != ignored
    if labels.is_floating_point() or not bool(bad.any()):
        return ""
    place = bad.nonzero()[0].tolist()
    which = f" in sample {place[0]}" if place else ""
    value = int(labels[tuple(place)])
    also = "" if ignored is None else f", and {ignored} for what is ignored"
    return f"a label is out of range: {value}{which}; {name} has {count:,} {what} and accepts 0 to {count - 1:,}{also}"
