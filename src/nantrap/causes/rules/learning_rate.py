"""NT5xx: the size of a step. These read the steps before the failure."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.incident import Trial
from nantrap.thresholds import has_grown, is_absurd_rate

if TYPE_CHECKING:
    from nantrap.causes.case import Case

_NOISE = 1.01
"""Two losses that differ by less than one percent do not show that the lower learning rate went wrong."""
_ROUNDING = {False: 1 + 1e-6, True: 1.01}
"""Losses of one batch that differ by less show no direction either; in half precision by much more."""
_LOWER = {100: "a hundredth", 10_000: "a ten-thousandth"}
_FAR_LOWER = {10_000: "a ten-thousandth", 1_000_000: "a millionth", 100_000_000: "a hundred-millionth"}
"""What is tried after a hundredth: inputs that nobody scaled need such rates."""
_LEAST_RATE = 1e-9
"""No lower learning rate is tried: with updates of nothing every step stays as it was."""
_SMALL_RATE = 1e-6
"""A learning rate at which no update of finite gradients overflows."""
_USUAL, _USUAL_RATE = "usual_rate", 1e-3
"""A learning rate at which most optimizers train most models; tried where a hundredth of the given one is higher."""
_FAR = "far_lower_rate_by_"
_SHOWN = 6
"""Losses before the failure that are shown: they fit into one line."""
_STABLE = 2.0
"""A loss that ended above this many times the first one is finite and not stable."""
_THROWN = 1.0
"""Weights that a few updates moved by as much as their own size were thrown away rather than trained."""
_FEW = 32
"""How many updates are a few. In thousands of them a healthy training moves weights by their own size."""
_THROWN_AT_ONCE = 2.0
"""One update that moves the weights by this many times their own size is no step of a training."""
_EXPLODED = 1e6
"""A loss that grew by this factor within the recent steps was not raised by a harder batch."""
_ROSE_AT_ONCE = 100.0
"""A loss that rises by this factor from one step to the next may have met a bad batch."""
_BEFORE_PRECISION = 400
"""Before precision, which comes first otherwise: weights that single updates threw away leave any range soon, so that
the range of half precision is only where it shows."""
_OTHER_WEIGHTS = ("rescaled", "older_weights", "without_giant", "rewritten")
"""Trials of a step that change its weights, by how their names begin."""
_JUMP = 5.0
"""A schedule moves a learning rate by less in one step; a restored state that does not fit moves it by more."""
_DELAYS = "with a far lower learning rate the loss still ends higher than without any update"

_DIRECTION = (
    "check the direction first: the sign of the loss, maximize=True, a momentum of 1 or more; a lower learning rate "
    "only delays it"
)
_LINE_SEARCH = 'let a line search choose it (LBFGS: line_search_fn="strong_wolfe")'
_BESIDE = (
    "the step fails with older weights too: the batch, and what the program keeps beside the model (an average, a "
    "target network), are not taken back with them"
)


@rule("lr_too_high")
def lr_too_high(case: Case) -> Claim | None:
    """The learning rate is beyond the stability limit."""
    if case.phase == "optimizer" and (beyond := _beyond_any_scale(case)) is not None:
        return beyond
    if (thrown := _thrown_beside(case)) is not None:
        return thrown
    if not _may_be_too_high(case):
        return _within_one_step(case)
    rates = _last_rates(case)
    rate = max(rates, default=math.nan)
    trial, part, lower = _slower(case, rate)
    if trial.finite is None and (undone := _undone(case, rate)) is not None:
        return _thrown_away(case, rate, undone)
    if _is_refuted(case, trial, part):
        return None
    delays = _only_delays(case, trial) if trial.finite else ""
    stable = bool(trial.finite) and not delays and _is_stable(case, trial)
    tried = f" ({case.lab.steps} stay finite at {lower:.3g})" if trial.finite else _for_example(rate)
    known = math.isfinite(rate)
    of = f" of {rate:.4g}" + (f", the highest of {len(rates)} parameter groups," if len(set(rates)) > 1 else "")
    losses = [f"{record.loss:.3g}" for record in case.run.history.applied()[-_SHOWN:]]
    worse = ("an earlier batch has a far larger loss now, with the same random numbers",)
    return Claim(
        "tried" if stable else "hint",
        f"a learning rate{of} is beyond the stability limit: {_what_happened(case)}"
        if stable
        else f"the learning rate{of if known else ''} may be too high: {_what_happened(case)}",
        (
            *_how_far(case),
            *(worse if case.lab.weights_diverged() else ()),
            *((delays,) if delays else ()),
            *((_BESIDE,) if _fails_beside(case, trial) else ()),
        ),
        history=(f"the loss {'went' if len(losses) > 1 else 'was'} {' -> '.join(losses)} before the failure",),
        trial=trial,
        shows=case.lab.steps_in_words(f"with {part}"),
        remedies=(Remedy(f"{part}{tried}" if known else part, trial),) if stable else (),
        help=_DIRECTION
        if delays
        else "scale inputs and targets: a learning rate as low as this points to their size"
        if stable and trial.name.startswith(_FAR)
        else _gentler(case, "")
        if stable
        else _gentler(case, f"lower the learning rate{tried if known else ''}") + _or_a_batch(case),
        contests=_is_between_networks(case, trial) or (not case.failure.repeatable and _is_likely(case, rate)),
        precedence=_BEFORE_PRECISION if _throws_at_once(case, rate) else None,
    )


def _for_example(rate: float) -> str:
    """A rate to begin with where none is known to help: none of those that were tried, for they did not."""
    return f" (for example to {min(rate / 100, _USUAL_RATE):.3g})"


def _gentler(case: Case, lower: str) -> str:
    """What to do besides, or instead of, a lower learning rate, as far as the guard does not do it already."""
    clips = case.run.max_grad_norm is not None
    others = [_LINE_SEARCH] if case.failure.evaluated else ["warm it up", "" if clips else "clip the gradients"]
    *said, last = (each for each in (lower, *others) if each)
    return f"{', '.join(said)}, or {last}" if said else last


def _slower(case: Case, rate: float) -> tuple[Trial, str, float]:
    """The updates again with lower and lower learning rates, until the loss is stable: the trial, its part, its rate.

    If none is stable, the first one that is finite; else the last.
    """
    tried = [(case.lab.tenth_of_rate(), "a tenth of the learning rate", rate / 10)]

    def settled() -> bool:
        trial = tried[-1][0]
        return trial.finite is None or (trial.finite and _is_stable(case, trial))

    if not settled():
        part = f"{_LOWER[100]} of the learning rate"
        trial = case.lab.rate("rate_by_100", f"{part} from an older state on", lambda _s, _g, lr: lr / 100)
        tried.append((trial, part, rate / 100))
    if not settled() and rate / 100 > _USUAL_RATE:
        part = f"a learning rate of at most {_USUAL_RATE:g}"
        trial = case.lab.rate(_USUAL, f"{part} from an older state on", lambda _s, _g, lr: min(lr, _USUAL_RATE))
        tried.append((trial, part, _USUAL_RATE))
    for divisor, words in _FAR_LOWER.items():
        if not settled() and rate / divisor >= _LEAST_RATE:
            part = f"{words} of the learning rate"
            lower = functools.partial(_lowered, divisor, math.inf)
            trial = case.lab.rate(f"{_FAR}{divisor}", f"{part} from an older state on", lower)
            tried.append((trial, part, rate / divisor))
    if settled():
        return tried[-1]
    return next((entry for entry in tried if entry[0].finite), tried[-1])


def _undone(case: Case, rate: float) -> Trial | None:
    """The step with the weights from before its updates, if it is finite with them and the learning rate threw them
    away.

    For updates on another batch that do not fail again: the loss of one batch may well fall with them.
    """
    trial = case.lab.older_weights() if _throws_at_once(case, rate) else None
    return trial if trial is not None and trial.finite and _is_stable(case, trial) else None


def _throws_at_once(case: Case, rate: float) -> bool:
    """Whether each update moved the weights by more than their own size, and a usual learning rate would not have."""
    return _is_thrown_at_once(case.lab.moved / max(1, case.lab.updates), rate)


def _is_thrown_at_once(each: float, rate: float) -> bool:
    """Whether updates that move the weights by so many times their own size come from their learning rate."""
    return each >= _THROWN_AT_ONCE and rate > _USUAL_RATE and each * _USUAL_RATE / rate < _THROWN


def _or_a_batch(case: Case) -> str:
    """The other explanation, where the updates were made on batches that are not kept: one of those was bad."""
    applied = case.run.history.applied()
    rises = (
        later for earlier, later in itertools.pairwise(applied) if abs(later.loss) > _ROSE_AT_ONCE * abs(earlier.loss)
    )
    first = next(rises, None)
    if first is None or not case.lab.stands_in:
        return ""
    return f"; or the batch of step {first.step:,} was bad, where the loss first rose, to {first.loss:.3g}"


def _is_likely(case: Case, rate: float) -> bool:
    """Whether single updates threw the weights away, or those that did made the loss explode from step to step."""
    return _throws_at_once(case, rate) or (_thrown(case) and case.loss_growth >= _EXPLODED)


def _thrown_away(case: Case, rate: float, undone: Trial) -> Claim:
    """The updates moved the weights so far that only the step with those from before them is finite."""
    return Claim(
        "tried",
        f"a learning rate of {rate:.4g} is beyond the stability limit: the updates threw the weights away",
        _how_far(case),
        trial=undone,
        shows=f"with {undone.change} the step is finite",
        help=_gentler(case, f"lower the learning rate{_for_example(rate)}"),
    )


def _is_between_networks(case: Case, trial: Trial) -> bool:
    """Whether lower rates could not be tried because another network took steps in between, and yet the weights from
    before the updates clear the step: what failed in it is not decided against a learning rate that is too high."""
    if not case.run.beside or trial.finite is not None or not _thrown(case):
        return False
    older = case.lab.older_weights()
    return older is not None and older.finite is True


def _thrown_beside(case: Case) -> Claim | None:
    """The updates of another network that the loss reads threw its weights away: both are taken back together."""
    from nantrap.causes.earlier_steps import beside, distance

    if case.phase not in ("forward", "backward") or case.external is not None:
        return None
    for other in beside(case):
        far = distance(other.parameters, other.value_of)
        if not _is_thrown_at_once(far / max(1, other.updates), other.rate):
            continue
        trial = case.lab.older_weights()
        if trial is not None and trial.finite is False:
            return None
        return Claim(
            "tried",
            f"a learning rate of {other.rate:.4g} is beyond the stability limit: the updates of another network, which "
            "this loss reads, threw its weights away",
            (f"since step {other.step:,} of that network its updates moved the weights by {far:.3g} times their size",),
            trial=trial,
            shows="" if trial is None else f"with {trial.change} the step is finite",
            help=_gentler(case, f"lower that learning rate{_for_example(other.rate)}"),
            contests=True,
        )
    return None


def updates_explain(case: Case) -> bool:
    """Whether the updates made the weights bad: the step has a usual loss after updates with a lower learning rate, or
    with the weights from before them; where nothing can be tried, whether the learning rate is the likely reason."""
    if not _may_be_too_high(case):
        return False
    rate = max(_last_rates(case), default=math.nan)
    if not case.failure.repeatable:
        return _is_likely(case, rate)
    trial = _slower(case, rate)[0]
    if not (trial.finite and _is_stable(case, trial)):
        trial = case.lab.older_weights() or trial
    return bool(trial.finite) and _is_stable(case, trial)


def _may_be_too_high(case: Case) -> bool:
    """Whether the updates since an older state made the weights worse: the loss or the gradients grew, or the weights
    moved by more than their own size."""
    if case.phase not in ("forward", "backward", "optimizer") or case.external is not None:
        return False
    if not (case.grew or _thrown(case)) or rate_jump(case) is not None:
        return False
    if not case.failure.repeatable and not (_loss_overflowed(case) or _thrown(case)):
        return False  # nothing can be tried, and a finite loss that rose does not show an unstable learning rate
    if not case.failure.repeatable and case.failure.evaluated and not case.grew:
        return False  # an optimizer that makes many updates in one step may well move the weights far
    if any(_shows_good_weights(case, trial) for trial in case.lab.trials):
        return False
    # the loss of an earlier batch has not risen: the batches differ, the weights did not get worse
    return case.lab.weights_diverged() is not False


def _thrown(case: Case) -> bool:
    return case.lab.moved >= _THROWN * max(1.0, case.lab.updates / _FEW)


def _shows_good_weights(case: Case, trial: Trial) -> bool:
    """Whether the step had a usual loss with the weights of now and one other thing changed: not those are bad."""
    same_weights = trial.harness == "step" and not trial.name.startswith(_OTHER_WEIGHTS)
    return same_weights and trial.finite is True and _is_stable(case, trial)


def _how_far(case: Case) -> tuple[str, ...]:
    """By how much the updates moved the weights, where that is more than their own size."""
    if not _thrown(case):
        return ()
    return (f"the updates {case.lab.since} moved the weights by {case.lab.moved:.3g} times their own size",)


def _loss_overflowed(case: Case) -> bool:
    return case.incident.loss is None or not math.isfinite(case.incident.loss)


def _last_rates(case: Case) -> tuple[float, ...]:
    """The learning rates of the last applied step, by parameter group."""
    applied = case.run.history.applied()
    return applied[-1].lr if applied else ()


def _is_refuted(case: Case, trial: Trial, part: str) -> bool:
    """Whether a trial contradicts a learning rate that is too high; that is noted."""
    beside = _fails_beside(case, trial)
    if trial.finite is False and not beside:
        case.refute("lr_too_high", trial, f"{part} does not help")
        return True
    control = next((each for each in case.lab.controls if each.harness == "steps"), None)
    if control is not None and control.finite and _is_stable(case, control):
        # updates with this learning rate are stable: what led here is something else, unless those that did threw the
        # weights away on batches that are not kept
        return not (case.lab.stands_in and _is_likely(case, max(_last_rates(case), default=math.nan)))
    older = case.lab.older_weights() if trial.finite is None and not beside else None
    if older is not None and older.finite is False:
        case.refute("lr_too_high", older, f"with {older.change} the step fails at the same operation")
        return True
    return False


def _fails_beside(case: Case, trial: Trial) -> bool:
    """Whether the step fails with older weights too, after updates that threw the weights away: this does not refute
    them, since what the program holds beside the model was made with those weights."""
    if not (case.grew and _is_likely(case, max(_last_rates(case), default=math.nan))):
        return False
    if trial.finite is False:
        return case.lab.stands_in
    older = case.lab.older_weights() if trial.finite is None else None
    return older is not None and older.finite is False


def _what_happened(case: Case) -> str:
    """What the updates before the failure did, in words."""
    if not case.grew:
        return "the updates threw the weights away"
    rose = has_grown(case.loss_growth)
    overflowed = " until it overflowed" if rose and _loss_overflowed(case) else ""
    return ("the loss grew" if rose else "the gradients grew") + overflowed


def _beyond_any_scale(case: Case) -> Claim | None:
    """A learning rate that no update survives: Inf, NaN, or so large that it overflows by itself."""
    rates = [float(group.get("lr", 0.0)) for group in case.failure.optimizer.param_groups]
    absurd = next((rate for rate in rates if is_absurd_rate(rate)), None)
    if absurd is None:
        return None
    trial = case.lab.update_with("lr", _SMALL_RATE)
    if trial.finite is False:
        case.refute("lr_too_high", trial, "a small learning rate does not help")
        return None
    text = "NaN" if math.isnan(absurd) else "Inf" if math.isinf(absurd) else f"{absurd:.3g}"
    return Claim(
        "tried",
        f"a learning rate of {text} makes the update non-finite",
        (f"lr={text} in a parameter group of the optimizer; the loss and the gradients are finite",),
        trial=trial,
        shows=f"the same update with a learning rate of {_SMALL_RATE:g} is finite",
        help="check what computes the learning rate: a schedule that divides by a step number, a warm-up or a "
        "remaining length of 0 gives Inf or NaN",
    )


def _within_one_step(case: Case) -> Claim | None:
    """An optimizer that makes several updates in one step threw the weights away inside of it."""
    failed = case.failure
    if not (failed.evaluated and failed.can_update):
        return None
    rate = max(float(group.get("lr", math.nan)) for group in failed.optimizer.param_groups)
    for divisor in (10, 100, 1_000, 10_000):
        trial = case.lab.update_with("lr", rate / divisor)
        if trial.finite and trial.loss is not None and abs(trial.loss) <= _STABLE * abs(failed.loss_value):
            return Claim(
                "tried",
                f"a learning rate of {rate:.4g} is beyond the stability limit: within one step the updates threw the "
                "weights away",
                (f"the loss was {failed.loss_value:.3g} and its gradients finite when the step began",),
                trial=trial,
                shows=f"with a learning rate of {rate / divisor:.3g} the step is finite, and its loss is "
                f"{trial.loss:.3g} at its end",
                remedies=(Remedy(f"a learning rate of {rate / divisor:.3g}", trial),),
                help=_LINE_SEARCH,
            )
    return None


def _only_delays(case: Case, slower: Trial) -> str:
    """In words, that a lower learning rate only delays it: the loss ends higher than without any update. Empty if it
    helps."""
    still = case.lab.rate("no_rate", "a learning rate of 0 from an older state on", lambda _step, _group, lr: 0.0 * lr)
    if slower.loss is None or still.loss is None or not math.isfinite(still.loss):
        return ""  # nothing to compare: the update itself failed
    if slower.name.startswith(_FAR):  # updates of nearly nothing change nearly nothing: they must at least help
        return "" if _cost(case, slower.loss) < _cost(case, still.loss) else _DELAYS
    if not _is_worse(case, slower.loss, still.loss, 1.0 if slower.name == _USUAL else _NOISE):
        return ""
    for part, words in _LOWER.items():  # on one batch: the noise of batches does not show a direction
        highest = _USUAL_RATE / part if slower.name == _USUAL else math.inf
        change = f"{words} of the learning rate" if highest == math.inf else f"a learning rate of at most {highest:g}"
        rate_of = functools.partial(_lowered, part, highest)
        lower = case.lab.rate(f"this_batch_by_{part}", f"{change} from an older state on", rate_of, this_batch=True)
        if lower.loss is None or not _is_worse(case, lower.loss, still.loss, _ROUNDING[case.any_half]):
            return ""
    return _DELAYS


def _is_worse(case: Case, loss: float, before: float, noise: float) -> bool:
    """Whether a loss is worse than another by more than noise."""
    return _cost(case, loss) > _cost(case, before) + (noise - 1.0) * abs(before)


def _cost(case: Case, loss: float) -> float:
    """How bad a loss is: what grows without end downwards (the wrong sign) is not better for being lower."""
    applied = case.run.history.applied()
    last = case.incident.loss
    last = last if last is not None and math.isfinite(last) else applied[-1].loss if applied else 0.0
    return abs(loss) if last < 0 else loss


def _lowered(by: float, highest: float, _step: int, _group: int, rate: float) -> float:
    return min(rate / by, highest)


def _is_stable(case: Case, trial: Trial) -> bool:
    """Whether the loss did not grow at the lower learning rate either: finite for a few steps is not yet stable."""
    first = next((abs(record.loss) for record in case.run.history.applied()), math.inf)
    if trial.loss is None or abs(trial.loss) <= _STABLE * first:
        return trial.loss is not None
    before = case.lab.older_weights() if trial.name != "older_weights" else None  # of this very batch
    return before is not None and before.loss is not None and abs(trial.loss) <= _STABLE * abs(before.loss)


@rule("resume_lr_jump")
def resume_lr_jump(case: Case) -> Claim | None:
    """The learning rate jumped, by a schedule or by state that was restored."""
    jump = rate_jump(case)
    if jump is None:
        return None
    step, before, after = jump.step, jump.before, jump.after
    trial = case.lab.rate(
        "rate_before",
        "the learning rate before the jump",
        lambda s, group, lr: jump.rates.get(group, lr) if s >= step else lr,
    )
    if trial.finite is False:
        case.refute("resume_lr_jump", trial, "the learning rate before the jump does not help")
        return None
    return Claim(
        "tried",
        f"the learning rate jumped from {before:.4g} to {after:.4g} at step {step:,}",
        (),
        history=(f"the learning rate jumped from {before:.4g} to {after:.4g} at step {step:,}",),
        trial=trial,
        shows=f"with the learning rate before the jump {case.lab.steps} stay finite",
        remedies=(Remedy(f"the learning rate before the jump, {before:.4g}", trial),),
        help="if a state was restored there, set the learning rate again after load_state_dict in every param group "
        "(and the scheduler's base_lrs), or do not restore the scheduler; if a schedule jumps there, slow it down",
    )


class Jump(NamedTuple):
    """A learning rate that rose in one step. `rates` has those before it, by the number of each group that jumped."""

    step: int
    before: float
    after: float
    rates: dict[int, float]


def rate_jump(case: Case) -> Jump | None:
    """The last step among the recent ones in which the learning rate of a group rose fivefold. A warm-up is none."""
    records = [(record.step, record.lr) for record in case.run.history]
    if case.phase == "optimizer":  # elsewhere this step failed before its learning rate was used
        records.append((case.incident.step, case.incident.lr))
    groups = max((len(rates) for _, rates in records), default=0)
    jumps: dict[int, dict[int, tuple[float, float]]] = {}
    for group in range(groups):
        positive = [(step, rates[group]) for step, rates in records if group < len(rates) and rates[group] > 0]
        if (found := _last_jump(positive)) is not None:
            step, before, after = found
            jumps.setdefault(step, {})[group] = (before, after)
    if not jumps:
        return None
    step = max(jumps)
    before, after = max(jumps[step].values(), key=lambda rise: rise[1])
    return Jump(step, before, after, {group: earlier for group, (earlier, _) in jumps[step].items()})


def _last_jump(rates: list[tuple[int, float]]) -> tuple[int, float, float] | None:
    """The step of the last jump of one group, and the learning rates before and after."""
    for i in range(len(rates) - 1, 1, -1):
        earlier, before, after = rates[i - 2][1], rates[i - 1][1], rates[i][1]
        rising = earlier < before or (i + 1 < len(rates) and rates[i + 1][1] > after)  # a warm-up keeps rising
        if after / before >= _JUMP and not rising:
            return rates[i][0], before, after
    return None
