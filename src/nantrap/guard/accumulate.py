"""The micro-batches of a step: backward, and in gradient accumulation each judged by itself.

Before the forward pass of the next micro-batch the gradients of the last one are looked at alone: good ones are kept
aside, bad ones are dropped together with what their forward pass did to the buffers. It must be before: the next graph
holds on to the buffers as it found them. At the end the good ones are added up in the order in which autograd would
have added them, which gives the same bits as the plain loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from nantrap import finite
from nantrap.guard.diagnose import Observed
from nantrap.guard.loss import LossLike, as_loss, without_terms
from nantrap.guard.window import Micro, Window
from nantrap.incident import Action, Finding, Incident
from nantrap.locate.autopsy import examine
from nantrap.locate.losspart import note_loss_part

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard


def begin_window(guard: Guard) -> Window:
    """A new step. It begins without gradients: what another loss left in these parameters is not part of it."""
    guard._members.refresh()
    if guard._drives:
        guard._members.clear_gradients()
    window = guard._window = Window(started=time.perf_counter(), whole=not guard._drives)
    return window


def add_micro(guard: Guard, micro: Micro, *, given: LossLike, retain_graph: bool = False) -> None:
    """Backward of one micro-batch."""
    window = guard._window or begin_window(guard)
    if guard._drops_micro_batches and window.unsettled:
        # its forward pass was not seen (a submodule was called instead of the model): the buffers have moved on
        settle(guard, window, buffers=False)
    window.micros.append(micro)
    drops_terms = guard.policy.bad_terms == "drop" and bool(micro.loss.terms)
    if guard._late is None and (drops_terms or reads_at_once(micro.loss.total)):
        micro.values = finite.read(micro.loss.scalars())
        if micro.bad:
            _drop_bad_terms(guard, window, micro, given)
            if micro.bad:
                micro.evidence = examine(micro.loss.total, micro.root_call)
        elif micro.forward is None:
            micro.evidence = note_loss_part(micro.loss.total, micro.root_call)
    total = micro.loss.total if micro.factor == 1.0 else micro.loss.total * micro.factor
    guard._scaling.scale(total).backward(retain_graph=retain_graph)


def reads_at_once(loss: Tensor) -> bool:
    """On a CPU there is no device to wait for: the loss is read before backward frees its graph."""
    return loss.device.type == "cpu"


def settle(guard: Guard, window: Window, *, buffers: bool = True) -> None:
    """Judge the last micro-batch: keep its gradients aside if they are good, drop it if they are not.

    Args:
        guard: the guard.
        window: its step.
        buffers: whether no other forward pass has begun since, so that the buffers are this micro-batch's doing.
    """
    micro = window.micros[-1]
    window.settled = len(window.micros)
    window.buffers_unjudged = window.buffers_unjudged or not buffers
    norm = finite.gradient_norm(guard._members.gradients())
    suspects = guard._buffers.suspects() if buffers else []
    scalars = [norm, finite.nonfinite_flag(suspects).to(norm.device)]
    if micro.values is None:
        scalars += micro.loss.scalars()
    norm_value, flag, *values = finite.read(scalars)
    micro.values = micro.values or values
    buffers_bad = bool(flag) and bool(guard._buffers.names_of_bad())
    # with a scaler an overflow of good losses is its normal search for a scale, which the whole step decides
    gradients_bad = not math.isfinite(norm_value) and not guard._scaling.enabled
    if not (micro.bad or buffers_bad or gradients_bad):
        window.count(micro)
        window.stash(guard._members.parameters)
        if buffers:
            guard._buffers.mark()
        return
    observed = Observed(
        guard._step, micro, micro.values, norm_value, buffers_bad=buffers_bad, rank=guard._agreement.rank
    )
    incident = guard._diagnosis.run(observed, Action.APPLY)
    drop(guard, window, incident, f"micro-batch {len(window.micros)} dropped, the others stay")
    guard._members.clear_gradients()
    if buffers:
        guard._buffers.restore_mark()


def drop(guard: Guard, window: Window, incident: Incident, words: str) -> None:
    """This micro-batch takes no part in the step."""
    window.incidents.append((replace(incident, notes=(words, *incident.notes)), words))
    window.dropped += 1
    guard.tally.dropped_micro_batches += 1


def merge(guard: Guard, window: Window) -> None:
    """The gradients of all good micro-batches together, weighted as if the dropped ones had never been."""
    scale = 1.0
    if window.dropped and guard.policy.micro_weight == "mean":
        scale = (window.good + window.dropped) / window.good
    window.loss *= scale
    window.terms = {name: value * scale for name, value in window.terms.items()}
    window.unstash(guard._members.parameters, scale=scale)


def _drop_bad_terms(guard: Guard, window: Window, micro: Micro, given: LossLike) -> None:
    """With `bad_terms="drop"`, the micro-batch goes on without its bad terms, if any are left."""
    assert micro.values is not None
    named = micro.loss.named(micro.values[1:])
    bad = {name for name, value in named.items() if not math.isfinite(value)}
    if guard.policy.bad_terms != "drop" or not isinstance(given, Mapping) or not bad or len(bad) == len(named):
        return
    kept = without_terms(given, bad)
    if not any(isinstance(term, Tensor) and term.requires_grad for term in kept.values()):
        return
    window.findings += [Finding("term", n, "forward", value=named[n], note="dropped") for n in sorted(bad)]
    micro.loss = as_loss(kept)
    micro.values = finite.read(micro.loss.scalars())
    guard._console.say(f"step {guard._step:,}: loss terms {', '.join(sorted(bad))} are bad and dropped")
