"""Exceptions that a value caused, before there was a loss: `torch.distributions` refuses NaN, and so on.

`attempt` runs the step again under a trace. If a non-finite value led to the exception, the step is contained like any
other bad one; if not, the exception is the user's and passes through untouched. Where the guard does not run the loop,
it can only report what caused the exception. A label that PyTorch itself refuses is named, with what would be accepted.

With several ranks the others wait in a collective of their own for the one that raised, so that no step can be refused
together: the rank reports what it finds without them, and the exception is raised.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType

import torch
from torch import Tensor

from nantrap.errors import NantrapError
from nantrap.guard.collect import Collector
from nantrap.guard.diagnosis.diagnose import diagnose_exception
from nantrap.guard.driver import Driver
from nantrap.guard.refusal import refuse_exception
from nantrap.guard.session import Session
from nantrap.guard.torch_private import module_call
from nantrap.guard.window import Diagnosed, Loss, Micro, Outcome
from nantrap.incident import Action, Incident
from nantrap.locate import RngState, RootCall

_NO_VALUE = (TypeError, NameError, AttributeError, NotImplementedError)
"""Mistakes of a program that no value leads to."""
_NOT_OURS = (MemoryError, torch.OutOfMemoryError, NantrapError, *_NO_VALUE)
_OF_DEVICES = re.compile(r"(on|at) the (same|expected) device|two devices")
"""A tensor is not where the others are."""

_RAISED_ON_ONE = "the exception is raised: the other ranks cannot leave out a step that ends on this rank alone"


def no_loss() -> Loss:
    """In the place of a loss that was never computed."""
    return Loss(torch.full((), math.nan), {})


def contain_exception(
    session: Session, driver: Driver, collector: Collector, error: Exception, micro: Micro
) -> Outcome | None:
    """The step that ended with an exception, refused; `None` if the exception must be raised."""
    diagnosed = _diagnosed(session, error, micro)
    if diagnosed is None:
        _note_label(error)
        return None
    words = f"it ended with {type(error).__name__}"
    if session.policy.on_incident == "observe":
        session.recorder.note_exception(diagnosed, Action.APPLY, words)
        return None
    if session.ranks.together:
        notes = (*diagnosed.incident.notes, _RAISED_ON_ONE)
        diagnosed = diagnosed.with_incident(replace(diagnosed.incident, notes=notes))
        session.recorder.note_exception(diagnosed, Action.SKIP, words)
        return None
    return refuse_exception(session, driver, collector.open(), diagnosed, words)


def note_call(session: Session, collector: Collector, error: BaseException) -> None:
    """The model's call that an exception ended becomes the collector's last call, before the exception is explained.

    The program may call a part of the model that is not watched, because it calls the whole model otherwise. Such a
    call is seen in the frames that the exception left. Where the random streams were then is not known.
    """
    call, step = collector.root_call, error.__traceback__
    if (call is not None and call.running) or collector.evaluations.is_running:
        return
    ours = set(map(id, session.protected.root.modules()))
    while step is not None:
        found = module_call(step.tb_frame)
        if found is not None and id(found[0]) in ours:
            module, args, kwargs = found
            collector.root_call = RootCall(args, kwargs, RngState.capture(), None, module, before=collector.inputs)
            return
        step = step.tb_next


def explain_exception(session: Session, collector: Collector, error: BaseException) -> Incident | None:
    """After an exception in a loop that the guard does not run: report the non-finite value that caused it, if any."""
    call = collector.root_call
    if call is None or not isinstance(error, Exception):
        return None
    diagnosed = _diagnosed(session, error, Micro(no_loss(), root_call=call, values=[]))
    if diagnosed is None:
        _note_label(error)
        return None
    return session.recorder.note_exception(diagnosed, Action.STOP, f"the run ended with {type(error).__name__}")


def _note_label(error: Exception) -> None:
    """Add to the exception which label or token was out of range, if that is what PyTorch refused."""
    words = refused_in_words(error)
    note = f"nantrap: {words}"
    add_note = getattr(error, "add_note", None)  # since Python 3.11
    if words and add_note is not None and note not in getattr(error, "__notes__", ()):
        add_note(note)


def _diagnosed(session: Session, error: Exception, micro: Micro) -> Diagnosed | None:
    """The diagnosed of the incident behind an exception; `None` if nothing non-finite led to it."""
    if isinstance(error, _NOT_OURS) or _OF_DEVICES.search(str(error)) or session.policy.diagnose == "off":
        return None
    if session.ranks.together and not session.alone.possible:
        return None  # sharded weights, synchronised statistics: a replay needs ranks that take no part in it
    with session.protected.ledger.uncounted():
        return diagnose_exception(session, micro, error)


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
