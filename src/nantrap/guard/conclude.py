"""The end of a step: one read, one decision, then apply, probe or refuse."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from nantrap import finite
from nantrap.errors import NonFiniteError
from nantrap.guard.accumulate import merge, settle
from nantrap.guard.console import stop_message
from nantrap.guard.diagnose import Observed
from nantrap.guard.outcome import Outcome
from nantrap.guard.rates import current_rates
from nantrap.guard.rollback import no_way_back, roll_back
from nantrap.incident import Action, Finding, Incident

if TYPE_CHECKING:
    from nantrap.guard.guard import Guard
    from nantrap.guard.ranks import Verdict
    from nantrap.guard.window import Micro, Window


@dataclass(slots=True)
class _Reading:
    """What the one host read of a step brought."""

    norm: Tensor
    norm_value: float
    watch: dict[str, float]
    buffers_bad: bool
    guilty: Micro | None


def conclude(guard: Guard, window: Window) -> Outcome:
    """Judge the step as a whole and do what follows from it."""
    if window.separate:
        if window.unsettled:
            settle(guard, window)
        if not window.good:
            return _refuse_window(guard, window)
        merge(guard, window)
    elif window.dropped and not window.micros:
        return _refuse_window(guard, window)
    guard._scaling.unscale()
    reading = _read(guard, window)
    norm_bad = not math.isfinite(reading.norm_value)
    local_bad = reading.guilty is not None or reading.buffers_bad
    probing = norm_bad and not local_bad and guard._scaling.is_probing() and _is_the_scale(guard, window)
    verdict = guard._agreement.decide(
        origin=local_bad,
        symptom=norm_bad and not probing,
        harmful=(norm_bad and not probing) or reading.buffers_bad,
        careful=guard._update.needs_care(_clipped(guard, reading.norm_value)),
    )
    if verdict.bad:
        return _refuse_bad(guard, window, reading, verdict)
    if not window.separate:
        for micro in window.micros:
            window.count(micro)
    if probing:
        return _probe_scale(guard, window, reading)
    if guard.policy.spikes != "off" and (spike := _spike(guard, window, reading)) is not None:
        return refuse(guard, window, spike, reading.watch)
    return _apply(guard, window, reading, careful=verdict.careful)


def _is_the_scale(guard: Guard, window: Window) -> bool:
    """Whether the overflow is due to the loss scale: at a scale of 1 the same micro-batches are finite.

    Only `attempt` can try; in the two-line form it is taken for the scaler's search until that lasts too long. Probes
    are rare, so running the step once more costs a healthy run next to nothing.
    """
    if guard._agreement.world_size > 1:
        return True  # one rank would run its forward pass alone
    with guard._buffers.kept():
        return all(guard._diagnosis.finite_at_scale_one(micro) for micro in window.micros if micro.forward is not None)


def _read(guard: Guard, window: Window) -> _Reading:
    """Everything the host wants to know of this step, in a single transfer."""
    norm = guard._gradient_norm()
    watched = guard._watch.scalars() if guard._watch else []
    judged = window.separate and not window.buffers_unjudged
    suspects = [] if judged else guard._buffers.suspects()
    unread = [micro for micro in window.micros if micro.values is None]
    scale = guard._scaling.scalar()
    scalars = [norm, *watched]
    scalars += [scale] if scale is not None else []
    scalars += [finite.nonfinite_flag(suspects).to(norm.device)] if suspects else []
    for micro in unread:
        scalars += micro.loss.scalars()
    values = iter(finite.read(scalars))
    norm_value = next(values)
    if not math.isfinite(norm_value) and not guard._norm_is_used():
        # Nobody clips by it: a sum of squares that overflows harms nothing while every gradient is finite.
        exact = finite.exact_norm(guard._members.gradients())
        norm_value = exact if math.isfinite(exact) else norm_value
    watch = guard._watch.named([next(values) for _ in watched]) if watched else {}
    if scale is not None:
        guard._scaling.note(next(values))
    buffers_bad = bool(suspects) and bool(next(values)) and bool(guard._buffers.names_of_bad())
    for micro in unread:
        micro.values = [next(values) for _ in micro.loss.scalars()]
    guilty = None if window.separate else next((micro for micro in window.micros if micro.bad), None)
    return _Reading(norm, norm_value, watch, buffers_bad, guilty)


def _clipped(guard: Guard, norm: float) -> float:
    return norm if guard._max_grad_norm is None else min(norm, guard._max_grad_norm)


# ---- good steps


def _apply(guard: Guard, window: Window, reading: _Reading, *, careful: bool) -> Outcome:
    norm = reading.norm_value
    if guard._max_grad_norm is not None:
        finite.clip_with_norm(guard._members.parameters, max_norm=guard._max_grad_norm, total=reading.norm, known=norm)
    rates = current_rates(guard.optimizer)
    undone = guard._update.run(guard._scaling.step, careful=careful)
    verdict = guard._agreement.decide(origin=bool(undone)) if careful else None
    if verdict is not None and verdict.bad:
        if not undone:
            guard._update.undo()
            undone = [Finding("parameter", f"rank {verdict.first_rank}", "optimizer", note="on another rank")]
        last = window.micros[-1]
        observed = Observed(
            guard._step,
            last,
            last.values or [],
            norm,
            update=undone,
            rank=verdict.first_rank,
            local=guard._agreement.rank in verdict.bad_ranks,
        )
        return refuse(guard, window, observed, reading.watch)
    for found in guard._update.newly_bad_before():
        guard._console.say(
            f"step {guard._step:,}: {found.kind.replace('_', ' ')} {found.name} was non-finite before this step and "
            "takes no part in it; it is left alone"
        )
    guard._scaling.update()
    if careful:
        _compare_ranks(guard, window)
    return accept(guard, window, norm, reading.watch, rates)


def _compare_ranks(guard: Guard, window: Window) -> None:
    """Averaged gradients are worth nothing if the weights they move differ. Looked at with the whole
    state, said once."""
    replicated = type(guard.model).__name__ == "DistributedDataParallel"
    if guard._agreement.world_size == 1 or not replicated or guard._ranks_differ:
        return
    sums = guard._agreement.checksums(guard._members.parameters)
    if len(set(sums)) > 1:
        guard._ranks_differ = True
        incident = guard._diagnosis.rank_divergence(guard._step, sums)
        window.incidents.append((incident, "the step was applied; it does not mend what differs"))


def accept(guard: Guard, window: Window, norm: float, watch: dict[str, float], rates: tuple[float, ...]) -> Outcome:
    """After an update that is there to stay: buffers, schedule, averages, statistics, the paper."""
    guard._buffers.adopt()
    _advance(guard)
    guard._ladder.applied()
    if guard.policy.spikes != "off":
        guard._spikes.applied(window.loss, norm)
    incident = window.incidents[0][0] if window.incidents else None
    for dropped, words in window.incidents:
        guard._console.incident(dropped, words)
    if window.findings and incident is None:
        incident = guard._diagnosis.dropped_terms(guard._step, window)
    return guard._ledger.end(window, Action.APPLY, norm, watch, rates, incident=incident)


def _advance(guard: Guard) -> None:
    if guard.scheduler is not None:
        guard.scheduler.step()
    if guard._ema_update is not None:
        guard._ema_update()
    if guard._drives:
        guard._members.clear_gradients()


def _probe_scale(guard: Guard, window: Window, reading: _Reading) -> Outcome:
    """The scaler met an overflow while it searches its scale: exactly what it would do without us."""
    rates = current_rates(guard.optimizer)
    guard._scaling.probe()
    guard._buffers.adopt()
    if guard.scheduler is not None:
        guard.scheduler.step()
    if guard._drives:
        guard._members.clear_gradients()
    guard.tally.scaler_probes += 1
    incident = window.incidents[0][0] if window.incidents else None
    return guard._ledger.end(window, Action.SKIP, reading.norm_value, reading.watch, rates, incident=incident)


# ---- bad steps


def _refuse_bad(guard: Guard, window: Window, reading: _Reading, verdict: Verdict) -> Outcome:
    micro = reading.guilty or window.micros[-1]
    observed = Observed(
        guard._step,
        micro,
        micro.values or [],
        reading.norm_value,
        buffers_bad=reading.buffers_bad,
        rank=verdict.first_rank,
        local=guard._agreement.rank in verdict.bad_ranks,
        harmless=not verdict.harmful,
        contested=verdict.contested,
    )
    return refuse(guard, window, observed, reading.watch)


def refuse(guard: Guard, window: Window, observed: Observed, watch: dict[str, float]) -> Outcome:
    """A bad step: decide the rung, diagnose, and put everything back as before."""
    if observed.spike is None and observed.values and not window.good:
        factor = observed.micro.factor
        window.loss = observed.values[0] * factor
        named = observed.micro.loss.named(observed.values[1:])
        window.terms = {name: value * factor for name, value in named.items()}
    if observed.spike is not None:
        action, reason = Action.SKIP, "a spike, skipped by the policy"
    else:
        action, reason = decide(guard, harmless=observed.harmless)
    if action is Action.APPLY:
        return _apply_anyway(guard, window, observed, watch)
    incident = guard._diagnosis.run(observed, action)
    return contain(guard, window, incident, reason, observed.norm, watch)


def _refuse_window(guard: Guard, window: Window) -> Outcome:
    """Every micro-batch was dropped. They were diagnosed one by one; the first speaks for the step."""
    action, reason = decide(guard, harmless=False)
    first = replace(window.incidents[0][0], action=action)
    window.loss = first.loss if first.loss is not None else math.nan
    window.terms = dict(first.terms)
    norm = first.grad_norm if first.grad_norm is not None else math.nan
    return contain(guard, window, first, f"all {window.dropped} micro-batches were bad; {reason}", norm, {})


def refuse_batch(guard: Guard, window: Window, found: list[Finding], verdict: Verdict) -> Outcome:
    """`check_batch` found it before the forward pass: nothing was computed. Going back would not mend the data."""
    action, reason = decide(guard, harmless=False, why="the batch is at fault, not the state")
    incident = guard._diagnosis.bad_batch(guard._step, found, action, rank=verdict.first_rank)
    window.loss = math.nan
    return contain(guard, window, incident, reason, math.nan, {})


def decide(guard: Guard, *, harmless: bool, why: str = "") -> tuple[Action, str]:
    """The rung of the ladder for a bad step, and the words for it. All ranks take the same."""
    way_back = why or no_way_back(guard)
    if guard._agreement.world_size > 1 and not harmless:
        # one rank without an anchor, and all stop together
        verdict = guard._agreement.decide(origin=bool(way_back))
        if verdict.bad:
            way_back = way_back or f"rank {verdict.first_rank} has no older state to go back to"
    return guard._ladder.decide(guard._step, harmless=harmless, no_way_back=way_back)


def contain(
    guard: Guard, window: Window, incident: Incident, reason: str, norm: float, watch: dict[str, float]
) -> Outcome:
    """This step never happened: gradients, buffers, scaler and, for a rollback, everything. Then the paper."""
    action = incident.action
    rates = current_rates(guard.optimizer)
    if guard._drives:
        guard._members.clear_gradients()
    else:
        guard._members.zero_gradients()
    guard._buffers.restore()
    guard._scaling.forget()
    if action is Action.ROLLBACK:
        went_back, words = roll_back(guard)
        reason += words
        if not went_back:
            action = Action.STOP
            incident = replace(incident, action=action)
    elif guard.scheduler is not None and guard.policy.scheduler_on_skip == "advance":
        # torch warns of a schedule that advances before the first optimizer.step(); here it is what the policy asks for
        guard.optimizer._opt_called = True  # type: ignore[attr-defined]
        guard.scheduler.step()
    guard._console.incident(incident, reason)
    outcome = guard._ledger.end(window, action, norm, watch, rates, incident=incident)
    if action is Action.STOP:
        farewell = guard._keeper.farewell()
        message = stop_message(incident, reason) + (f"\n{farewell}" if farewell else "")
        raise NonFiniteError(message, incident=incident)
    return outcome


def _apply_anyway(guard: Guard, window: Window, observed: Observed, watch: dict[str, float]) -> Outcome:
    """The policy only observes: report, and do exactly what the plain loop would have done."""
    incident = guard._diagnosis.run(observed, Action.APPLY)
    rates = current_rates(guard.optimizer)
    if observed.update:
        guard._repeat_update()
    else:
        gradients = guard._members.gradients()
        if guard._max_grad_norm is not None and gradients:
            norm = finite.gradient_norm(gradients)
            finite.clip_with_norm(guard._members.parameters, max_norm=guard._max_grad_norm, total=norm)
        guard._scaling.step()
    guard._scaling.update()
    guard._buffers.adopt()
    _advance(guard)
    guard._console.incident(incident, "the policy only observes")
    return guard._ledger.end(window, Action.APPLY, observed.norm, watch, rates, incident=incident)


def _spike(guard: Guard, window: Window, reading: _Reading) -> Observed | None:
    """A finite value far outside its range: reported, or returned as a reason to skip. All ranks skip together."""
    found = guard._spikes.find(window.loss, reading.norm_value)
    guard.tally.spikes += len(found)
    skips = guard.policy.spikes == "skip" and guard.policy.on_incident == "skip"
    if skips:
        verdict = guard._agreement.decide(origin=bool(found))
        if verdict.bad and guard._spikes.may_skip():
            last = window.micros[-1]
            spike = (
                found[0] if found else Finding("spike", "loss", "forward", note=f"a spike on rank {verdict.first_rank}")
            )
            return Observed(
                guard._step,
                last,
                last.values or [],
                reading.norm_value,
                spike=spike,
                rank=verdict.first_rank,
                local=bool(found),
            )
    for spike in found:
        again = "; the new level is accepted" if skips else ""
        guard._console.say(f"step {guard._step:,}: {spike.note}{again}")
    return None
