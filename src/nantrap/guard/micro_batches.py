"""Gradient accumulation: each micro-batch is judged separately, and a bad one is dropped.

Before the forward pass of the next micro-batch the gradients of the last one are checked alone: good ones are kept
aside, bad ones are dropped together with what their forward pass did to the buffers. It must be before: the next graph
holds on to the buffers as it found them. At the end the good ones are added up in the order in which autograd would
have added them, which gives the same bits as the plain loop.
"""

from __future__ import annotations

import math

from nantrap import finite
from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.diagnosis.diagnose import diagnose
from nantrap.guard.driver import Driver
from nantrap.guard.heads import drop_bad_heads
from nantrap.guard.judge import Verdict
from nantrap.guard.observation import observe
from nantrap.guard.session import Session
from nantrap.guard.window import Window


def judge_micro_batch(session: Session, driver: Driver, window: Window, *, buffers: bool = True) -> None:
    """Judge the last micro-batch: keep its gradients aside if they are good, drop it if they are not.

    Args:
        session: of the run.
        driver: who makes the update.
        window: the step.
        buffers: whether no other forward pass has begun since, so that this micro-batch alone wrote the buffers.
    """
    protected = session.protected
    micro = window.micros[-1]
    window.judged = len(window.micros)
    window.buffers_unjudged = window.buffers_unjudged or not buffers
    norm = finite.gradient_norm(protected.members.gradients())
    suspects = protected.ledger.suspects() if buffers else []
    scalars = [norm, finite.nonfinite_flag(suspects).to(norm.device)]
    if micro.values is None:
        scalars += micro.loss.scalars()
    norm_value, flag, *values = finite.read(scalars)
    micro.values = micro.values or values
    buffers_bad = bool(flag) and bool(protected.ledger.names_of_bad())
    # with a scaler an overflow of good losses is its normal search for a scale, which the whole step decides
    gradients_bad = not math.isfinite(norm_value) and not driver.scaling.enabled
    if gradients_bad and not buffers_bad and drop_bad_heads(session, driver, window, micro, norm_value):
        gradients_bad = False
    if not (micro.bad or buffers_bad or gradients_bad):
        window.count(micro)
        window.stash(protected.members.parameters)
        if buffers:
            protected.ledger.mark()
        return
    verdict = Verdict(bad=True, harmful=True, bad_ranks=(session.ranks.rank,))
    observation = observe(protected, micro, norm_value, verdict=verdict, buffers_bad=buffers_bad)
    protected.members.clear_gradients()
    diagnosed = diagnose(session, observation)
    drop(session, window, diagnosed, f"micro-batch {len(window.micros)} dropped, the others stay")
    if buffers:
        protected.ledger.restore_mark()


def drop(session: Session, window: Window, diagnosed: Diagnosed, words: str) -> None:
    """This micro-batch takes no part in the step."""
    window.diagnosed.append((diagnosed, words))
    window.dropped += 1
    session.recorder.tally.dropped_micro_batches += 1


def merge(session: Session, window: Window) -> None:
    """The gradients of all good micro-batches together, weighted as if the dropped ones did not exist. Those that the
    loop itself left out change nothing."""
    scale, dropped = 1.0, window.dropped - window.left_by_script
    if dropped and session.policy.accumulation.weight == "mean":
        scale = (window.good + dropped) / window.good
    window.loss *= scale
    window.terms = {name: value * scale for name, value in window.terms.items()}
    window.unstash(session.protected.members.parameters, scale=scale)
