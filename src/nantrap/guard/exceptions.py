"""Exceptions that a non-finite value caused, before there was a loss: `torch.distributions` refuses NaN, and so on.

`attempt` runs the step again under a trace. If a non-finite value led to the exception, the step is contained like any
other bad one; if not, the exception is the user's and passes through untouched. Where the guard does not run the loop,
it can only report what caused the exception.

With several ranks the others wait in a collective of their own for the one that raised, so that no step can be refused
together: the rank reports what it finds without them, and the exception is raised.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from nantrap.errors import NantrapError
from nantrap.guard.collect import Collector
from nantrap.guard.drafts import Draft
from nantrap.guard.driver import Driver
from nantrap.guard.loss import Loss
from nantrap.guard.outcome import Outcome
from nantrap.guard.parts import Parts
from nantrap.guard.refusal import refuse_exception
from nantrap.guard.window import Micro
from nantrap.incident import Action, Incident

_NOT_OURS = (MemoryError, torch.OutOfMemoryError, NantrapError)

_RAISED_ON_ONE = "the exception is raised: the other ranks cannot leave out a step that ends on this rank alone"


def no_loss() -> Loss:
    """In the place of a loss that was never computed."""
    return Loss(torch.full((), math.nan), {})


def contain_exception(
    parts: Parts, driver: Driver, collector: Collector, error: Exception, micro: Micro
) -> Outcome | None:
    """The step that ended with an exception, refused; `None` if the exception must be raised."""
    draft = _draft(parts, error, micro)
    if draft is None:
        return None
    words = f"it ended with {type(error).__name__}"
    if parts.policy.on_incident == "observe":
        parts.recorder.note_exception(draft, Action.APPLY, words)
        return None
    if parts.ranks.together:
        draft.incident = replace(draft.incident, notes=(*draft.incident.notes, _RAISED_ON_ONE))
        parts.recorder.note_exception(draft, Action.SKIP, words)
        return None
    return refuse_exception(parts, driver, collector.open(), draft, words)


def explain_exception(parts: Parts, collector: Collector, error: BaseException) -> Incident | None:
    """After an exception in a loop that the guard does not run: report the non-finite value that caused it, if any."""
    call = collector.root_call
    if call is None or not isinstance(error, Exception):
        return None
    draft = _draft(parts, error, Micro(no_loss(), root_call=call, values=[]))
    if draft is None:
        return None
    return parts.recorder.note_exception(draft, Action.STOP, f"the run ended with {type(error).__name__}")


def _draft(parts: Parts, error: Exception, micro: Micro) -> Draft | None:
    """The draft of the incident behind an exception; `None` if nothing non-finite led to it."""
    if isinstance(error, _NOT_OURS) or parts.policy.diagnose == "off":
        return None
    if parts.ranks.together and not parts.diagnosis.runs_alone:
        return None  # sharded weights, synchronised statistics: a replay needs ranks that take no part in it
    return parts.diagnosis.draft_exception(micro, error)
