"""Exceptions that a non-finite value caused, before there was a loss: `torch.distributions` refuses NaN, and so on.

`attempt` runs the step again under a trace. If a non-finite value led to the exception, the step is contained like any
other bad one; if not, the exception is the user's and passes through untouched. Where the loop is not the guard's, all
that is left is to say what was behind it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from nantrap.errors import NantrapError
from nantrap.guard.accumulate import begin_window
from nantrap.guard.conclude import contain, decide
from nantrap.guard.diagnose import Observed
from nantrap.guard.loss import Loss
from nantrap.guard.window import Micro
from nantrap.incident import Action, Incident
from nantrap.locate import locate

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard
    from nantrap.guard.outcome import Outcome

_NOT_OURS = (MemoryError, torch.OutOfMemoryError, NantrapError)


def no_loss() -> Loss:
    """In the place of a loss that was never computed."""
    return Loss(torch.full((), math.nan), {})


def contain_exception(guard: Guard, error: Exception, micro: Micro) -> Outcome | None:
    """The step that ended with an exception, refused; `None` if the exception must go on its way."""
    incident = _incident(guard, error, micro)
    if incident is None:
        return None
    words = f"it ended with {type(error).__name__}"
    if guard.policy.on_incident == "observe":
        guard._console.incident(replace(incident, action=Action.APPLY), words)
        guard._ledger.count(incident)
        return None
    window = guard._window or begin_window(guard)
    window.loss = math.nan
    action, reason = decide(guard, harmless=False)
    return contain(guard, window, replace(incident, action=action), f"{words}; {reason}", math.nan, {})


def explain_exception(guard: Guard, error: BaseException) -> Incident | None:
    """After an exception in a loop that the guard does not drive: say what was behind it, if anything was."""
    call = guard._root_call
    if call is None or not isinstance(error, Exception):
        return None
    incident = _incident(guard, error, Micro(no_loss(), root_call=call, values=[]))
    if incident is not None:
        incident = replace(incident, action=Action.STOP)
        guard._console.incident(incident, f"the run ended with {type(error).__name__}")
        guard._ledger.count(incident)
    return incident


def _incident(guard: Guard, error: Exception, micro: Micro) -> Incident | None:
    """The incident behind an exception; `None` if nothing non-finite led to it."""
    if isinstance(error, _NOT_OURS) or guard.policy.diagnose == "off" or guard._agreement.world_size > 1:
        return None  # another rank would wait for a replay that it takes no part in
    observed = Observed(guard._step, micro, [], 0.0, raised=True, rank=guard._agreement.rank)
    location = locate(guard._diagnosis.failed_step(observed, "forward", []), seconds=guard.policy.diagnose_seconds)
    if location.op is None and location.phase not in ("data", "state"):
        return None
    incident = guard._diagnosis.run(observed, Action.SKIP)
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    others = tuple(note for note in incident.notes if text not in note)  # the replay ended with it, too
    return replace(incident, notes=(f"the step ended with {text}", *others))
