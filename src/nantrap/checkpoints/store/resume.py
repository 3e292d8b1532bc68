"""The resume check: after states were loaded, is the run the one that was configured?

The learning rate is the usual problem. A configuration says 1e-4, the optimizer's and the scheduler's states hold
4.92e-4, and there is no message. Here the learning rate of every state is read, and a trial on a copy shows which of
them takes effect.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from nantrap import finite
from nantrap.checkpoints.store.gate import bad_values
from nantrap.checkpoints.torch_private import mark_stepped, note_last_rates, parts_of, set_parts
from nantrap.errors import UsageError
from nantrap.incident.wording import counted, some_of
from nantrap.thresholds import SQUARE_OVERFLOWS

Kind = Literal["rate", "missing_keys", "unexpected_keys", "uninitialised", "loss_scale", "step"]

_TINY_SCALE, _HUGE_SCALE = 2.0**-14, 2.0**24
_PREFIXES = {"module.": "DistributedDataParallel", "_orig_mod.": "torch.compile", "model.": "a wrapper"}


@dataclass(frozen=True, slots=True)
class ResumeFinding:
    """One thing that does not fit after a resume. `text` says what, `help` what to do about it."""

    kind: Kind
    text: str
    help: str
    severity: Literal["error", "warning"] = "error"
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{self.text}\nhelp: {self.help}"


def check_resume(
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    lr: float | Iterable[float] | None = None,
    expected_keys: Iterable[str] | None = None,
    step: int | None = None,
    take: str = "restored",
    lowered_by: float = 1.0,
) -> list[ResumeFinding]:
    """Compare what was loaded with what was configured.

    Args:
        model: checked for values that were never filled.
        optimizer: after `load_state_dict`.
        scheduler: after `load_state_dict`.
        scaler: after `load_state_dict`.
        lr: the configured learning rate at its peak, one number or one for each parameter group.
        expected_keys: the keys of the model's state that was loaded.
        step: the step at which the run continues.
        take: `"configured"` sets the configured learning rate; `"restored"` only reports.
        lowered_by: what rollbacks have multiplied the learning rate by, if they did.

    Example:
        >>> import torch, nantrap.checkpoints
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1e-4)
        >>> optimizer.load_state_dict(torch.optim.SGD([weight], lr=4.92e-4).state_dict())
        >>> print(nantrap.checkpoints.check_resume(optimizer=optimizer, lr=1e-4)[0].text)
        the learning rate is 0.000492, the configuration says 0.0001: the restored optimizer state overrides it (param_groups[0]: lr 0.000492)
    """  # noqa: E501 - the sentence is under test
    if take not in ("restored", "configured"):
        raise UsageError(f"check_resume(take={take!r}): choose restored or configured")
    found: list[ResumeFinding] = []
    if lr is not None:
        if optimizer is None:
            raise UsageError("check_resume(lr=...) needs optimizer=")
        found += _check_rates(optimizer, scheduler, _configured(lr, optimizer), take=take, lowered_by=lowered_by)
    elif take == "configured":
        raise UsageError("check_resume(take='configured') needs lr=, the configured learning rate")
    if model is not None:
        if expected_keys is not None:
            found += _check_keys(model, set(expected_keys))
        found += _check_values(model)
    if scaler is not None and scaler.is_enabled():
        found += _check_scale(float(scaler.get_scale()))
    if optimizer is not None:
        found += _check_steps(optimizer, scheduler, step)
    return found


# ---- the learning rate


def _configured(lr: float | Iterable[float], optimizer: Optimizer) -> list[float]:
    """The configured learning rate of each parameter group; raises `UsageError` if there are too few or one is not
    positive.
    """
    count = len(optimizer.param_groups)
    try:
        rates = [float(lr)] * count if isinstance(lr, (int, float)) else [float(rate) for rate in lr]
    except (TypeError, ValueError):
        raise UsageError(f"check_resume(lr={lr!r}): one number, or one for each parameter group") from None
    if len(rates) != count:
        raise UsageError(
            f"check_resume(lr=...): {len(rates)} learning rates for {count} parameter groups; give one for each"
        )
    if not all(rate > 0 and math.isfinite(rate) for rate in rates):
        raise UsageError(f"check_resume(lr={lr!r}): positive numbers")
    return rates


def _check_rates(
    optimizer: Optimizer, scheduler: Any, configured: Sequence[float], *, take: str, lowered_by: float
) -> list[ResumeFinding]:
    """The finding if a restored state overrides the configured learning rate: which state, for how long, and the
    remedy.
    """
    groups = optimizer.param_groups
    keys = [peak_key(group, scheduler) for group in groups]
    peaks = [float(group[key]) for group, key in zip(groups, keys, strict=True)]
    bases = base_rates(scheduler) or list(configured)
    by_group = [_ratio(want, have) for want, have in zip(configured, peaks, strict=True)]
    by_base = [_ratio(want, have) for want, have in zip(configured, bases, strict=True)]
    off_group = [i for i, ratio in enumerate(by_group) if not _close(ratio, 1.0)]
    off_base = [i for i, ratio in enumerate(by_base) if not _close(ratio, 1.0)]
    if not off_group and not off_base:
        return []
    first = (off_group or off_base)[0]
    now = float(groups[first]["lr"])
    sources, lasting = _winners(optimizer, scheduler, by_group, by_base, off_group, off_base)
    words = []
    if "optimizer" in sources:
        shown = f"lr {_number(now)}" + (f", {keys[first]} {_number(peaks[first])}" if keys[first] != "lr" else "")
        words.append(f"the restored optimizer state overrides it (param_groups[{first}]: {shown})")
    if "scheduler" in sources:
        words.append(f"the restored scheduler state overrides it (base_lrs[{first}]: {_number(bases[first])})")
    text = f"the learning rate is {_number(now)}, the configuration says {_number(configured[first])}"
    text += f": {' and '.join(words)}" if words else ": a restored state holds it, without effect on the next steps"
    if "optimizer" in sources and not lasting:
        text += "; for the next step only, then the schedule computes it from its own base_lrs"
    if lowered_by < 1.0 and all(_close(by_group[i] * lowered_by, 1.0) for i in off_group or off_base):
        text += f"; rollbacks had multiplied the learning rate by {lowered_by:.4g}"
    place = f" at step {scheduler.last_epoch:,} of the schedule" if hasattr(scheduler, "last_epoch") else ""
    help_text = (
        f'check_resume(lr={_number(configured[first])}, take="configured") sets the configured learning rate{place}; '
        "do nothing if you want the old learning rate"
    )
    taken = take == "configured"
    if taken:
        for group, ratio, want in zip(groups, by_group, configured, strict=True):
            if math.isfinite(ratio):
                scale_group(group, ratio)
            else:
                group["lr"] = want
        scale_bases(scheduler, [ratio if math.isfinite(ratio) else 1.0 for ratio in by_base])
        now = float(groups[first]["lr"])
        text += f". The configured learning rate was set: it is {_number(now)} now{place}"
        help_text = "nothing: the configured learning rate is set"
    data = {"sources": tuple(sources), "in_force": now, "configured": configured[first], "taken": taken}
    severity: Literal["error", "warning"] = "error" if sources and not taken else "warning"
    return [ResumeFinding("rate", text, help_text, severity, data)]


def _winners(
    optimizer: Optimizer,
    scheduler: Any,
    by_group: Sequence[float],
    by_base: Sequence[float],
    off_group: Sequence[int],
    off_base: Sequence[int],
) -> tuple[list[str], bool]:
    """Which states decide the learning rate, and whether the optimizer's does so beyond the next step: by trial on a
    copy."""
    if scheduler is None:
        return (["optimizer"] if off_group else []), True
    as_is = next_rates(optimizer, scheduler)
    other_groups = next_rates(optimizer, scheduler, groups=[_or_one(ratio) for ratio in by_group])
    other_bases = next_rates(optimizer, scheduler, bases=[_or_one(ratio) for ratio in by_base])
    if as_is is None or other_groups is None or other_bases is None:
        return (["optimizer"] if off_group else []) + (["scheduler"] if off_base else []), True
    lasting = not _same(as_is, other_groups)
    sources = ["optimizer"] if off_group else []
    if off_base and not _same(as_is, other_bases):
        sources.append("scheduler")
    if off_group and not lasting and "scheduler" in sources:
        lasting = True  # both hold the old learning rate: it stays
    return sources, lasting


# ---- everything else


def _check_keys(model: nn.Module, loaded: set[str]) -> list[ResumeFinding]:
    """The findings for keys that the model and the checkpoint do not share; a common prefix is named."""
    own = set(model.state_dict())
    missing, unexpected = sorted(own - loaded), sorted(loaded - own)
    found = []
    for prefix, writer in _PREFIXES.items():
        if unexpected and {key.removeprefix(prefix) for key in loaded} == own:
            text = f"every key of the checkpoint begins with {prefix!r}: it was saved from {writer}, nothing was loaded"
            strip = f"{{key.removeprefix({prefix!r}): value for key, value in state.items()}}"
            return [ResumeFinding("unexpected_keys", text, f"load {strip}")]
    if missing:
        text = (
            f"{counted(len(missing), 'key')} of the model {_are(missing)} not in the checkpoint: {some_of(missing, 4)}"
        )
        help_text = (
            "they hold the values of the constructor: load a checkpoint that has them, or initialise them on purpose"
        )
        found.append(ResumeFinding("missing_keys", text, help_text, data={"keys": tuple(missing)}))
    if unexpected:
        named = some_of(unexpected, 4)
        text = f"{counted(len(unexpected), 'key')} of the checkpoint {_are(unexpected)} not in the model: {named}"
        help_text = "the model differs from the one that was saved; compare the two configurations"
        found.append(ResumeFinding("unexpected_keys", text, help_text, "warning", {"keys": tuple(unexpected)}))
    return found


def _check_values(model: nn.Module) -> list[ResumeFinding]:
    """The finding for tensors with NaN, Inf or absurd values after loading: memory that was never filled."""
    state = model.state_dict()
    strange = [name for name, tensor in state.items() if tensor.is_meta]
    strange += [name for name, _ in bad_values({k: v for k, v in state.items() if not v.is_meta})]
    for name, tensor in state.items():
        dense = finite.readable(tensor)
        if name not in strange and dense is not None:
            low, high = (float(value) for value in torch.aminmax(dense))
            if math.isfinite(low) and math.isfinite(high) and max(abs(low), abs(high)) > SQUARE_OVERFLOWS:
                strange.append(name)
    if not strange:
        return []
    tensors = counted(len(strange), "tensor")
    text = f"{tensors} {_hold(strange)} NaN, Inf or numbers no training makes: {some_of(strange, 4)}"
    help_text = (
        "memory that was never filled (to_empty, torch.empty, a key missing from the checkpoint), or a bad "
        "checkpoint: initialise them, or load the last good one (nantrap audit finds it)"
    )
    return [ResumeFinding("uninitialised", text, help_text, data={"tensors": tuple(strange)})]


def _check_scale(scale: float) -> list[ResumeFinding]:
    """The finding for a loss scale that gradients cannot survive."""
    if math.isfinite(scale) and 1.0 <= scale <= _HUGE_SCALE:
        return []
    if scale < 1.0:
        text = (
            f"the GradScaler's scale is {scale:.3g}: it was halved at every overflow until gradients underflow instead"
        )
        help_text = "a NaN in the forward pass lowered it; find that first, then start with a new GradScaler"
        severity: Literal["error", "warning"] = "error" if scale <= _TINY_SCALE else "warning"
    else:
        text = f"the GradScaler's scale is {scale:.3g}: so large that the first steps will overflow"
        help_text, severity = "start with a new GradScaler; it finds its scale within a few steps", "warning"
    return [ResumeFinding("loss_scale", text, help_text, severity, {"scale": scale})]


def _check_steps(optimizer: Optimizer, scheduler: Any, step: int | None) -> list[ResumeFinding]:
    """The findings where optimizer, schedule and run count different steps."""
    found = []
    made = steps_made(optimizer)
    position = getattr(scheduler, "last_epoch", None)
    if step and made is None and not _is_stateless(optimizer):
        text = f"the run continues at step {step:,}, and the optimizer has no state: its moments start at zero"
        found.append(ResumeFinding("step", text, "optimizer.load_state_dict(...) with the state of that step"))
    if step is not None and made is not None and made > step:
        text = (
            f"the optimizer has made {made:,} steps, and the run continues at step {step:,}: they come from "
            "different saves"
        )
        found.append(ResumeFinding("step", text, "load model, optimizer and scheduler from the same checkpoint"))
    if made and position == 0:
        rate = float(optimizer.param_groups[0]["lr"])
        text = (
            f"the schedule is at its beginning, and the optimizer has made {made:,} steps: the scheduler's state "
            f"was not restored, so warm-up or decay begins again (learning rate now {_number(rate)})"
        )
        help_text = "scheduler.load_state_dict(...) after optimizer.load_state_dict(...), in this order"
        found.append(ResumeFinding("step", text, help_text, data={"made": made}))
    for inner in inner_schedulers(scheduler):
        total = getattr(inner, "total_steps", None)
        if isinstance(total, int) and isinstance(position, int) and position >= total - 1:
            text = f"the schedule has {total:,} steps, and {position:,} are made: the next scheduler.step() raises"
            help_text = "make the scheduler with the new total_steps, and restore only its last_epoch"
            found.append(ResumeFinding("step", text, help_text))
            break
    return found


def steps_made(optimizer: Optimizer) -> int | None:
    """How many steps an optimizer has made by its own count; `None` if it does not count them."""
    counts = [float(state["step"]) for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    if counts:
        return int(max(counts))
    return 0 if not optimizer.state and _is_stateless(optimizer) else None


def _is_stateless(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, SGD) and not any(group.get("momentum") for group in optimizer.param_groups)


def _ratio(want: float, have: float) -> float:
    return want / have if have and math.isfinite(have) else math.inf


def _or_one(ratio: float) -> float:
    return ratio if math.isfinite(ratio) else 1.0


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-6)


def _same(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(left, right, strict=True))


def _number(value: float) -> str:
    return f"{value:.4g}"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _hold(names: Sequence[str]) -> str:
    return "holds" if len(names) == 1 else "hold"


# ---- what a schedule will make of the learning rate, tried on a copy
#
# Which restored state decides the learning rate depends on the scheduler. OneCycleLR computes it from `max_lr` in the
# optimizer's groups, LambdaLR from its own `base_lrs`, CosineAnnealingLR from the learning rate in the group. Instead
# of knowing them all, one number is changed on a copy and the next learning rate is compared.


RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""The learning rates in an optimizer's group; all of them scale together."""


def inner_schedulers(scheduler: Any) -> list[Any]:
    """The scheduler and those it is made of (SequentialLR, ChainedScheduler)."""
    if scheduler is None:
        return []
    return [scheduler, *(s for inner in parts_of(scheduler) or [] for s in inner_schedulers(inner))]


def peak_key(group: dict[str, Any], scheduler: Any) -> str:
    """The key of the group that holds what a configuration calls the learning rate."""
    if "max_lr" in group and any(isinstance(s, OneCycleLR) for s in inner_schedulers(scheduler)):
        return "max_lr"
    return "initial_lr" if scheduler is not None and "initial_lr" in group else "lr"


def base_rates(scheduler: Any) -> list[float]:
    """The `base_lrs` of a schedule that has its own, one for each group; OneCycleLR does not use them."""
    for inner in inner_schedulers(scheduler):
        if not isinstance(inner, OneCycleLR) and getattr(inner, "base_lrs", None):
            return [float(rate) for rate in inner.base_lrs]
    return []


def next_rates(
    optimizer: Optimizer, scheduler: Any, *, groups: Sequence[float] | None = None, bases: Sequence[float] | None = None
) -> list[float] | None:
    """The learning rate of each group after the next step of the schedule, or `None` if a copy of it does not run.

    Args:
        optimizer: as it is now.
        scheduler: as it is now.
        groups: multiply the learning rates in each group of the copy by this first.
        bases: multiply the `base_lrs` of the copy by this first.
    """
    count = len(optimizer.param_groups)
    stub = _stub(optimizer, groups or [1.0] * count)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _copied(scheduler, stub, bases or [1.0] * count).step()
    except Exception:  # a scheduler of the user: it may need anything
        return None
    return [float(group["lr"]) for group in stub.param_groups]


def scale_group(group: dict[str, Any], factor: float) -> None:
    """Multiply every learning rate of a group."""
    for key in RATE_KEYS:
        if isinstance(group.get(key), Tensor):
            group[key].mul_(factor)
        elif isinstance(group.get(key), (int, float)):
            group[key] *= factor


def scale_bases(scheduler: Any, factors: Sequence[float]) -> None:
    """Multiply every `base_lrs`, also those of inner schedules, and note the current learning rates."""
    for inner in inner_schedulers(scheduler):
        if getattr(inner, "base_lrs", None):
            inner.base_lrs = [rate * factor for rate, factor in zip(inner.base_lrs, factors, strict=True)]
        note_last_rates(inner)


def _stub(optimizer: Optimizer, factors: Sequence[float]) -> Optimizer:
    """An optimizer with the same groups and one number to each."""
    stub = SGD([{"params": [torch.zeros(1)]} for _ in optimizer.param_groups], lr=1.0)
    for mine, group, factor in zip(stub.param_groups, optimizer.param_groups, factors, strict=True):
        mine.update({key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")})
        scale_group(mine, factor)
    mark_stepped(stub)
    return stub


def _copied(scheduler: Any, stub: Optimizer, factors: Sequence[float]) -> Any:
    clone = copy.copy(scheduler)
    clone.optimizer = stub
    if getattr(clone, "base_lrs", None):
        clone.base_lrs = [rate * factor for rate, factor in zip(clone.base_lrs, factors, strict=True)]
    if (parts := parts_of(clone)) is not None:
        set_parts(clone, [_copied(inner, stub, factors) for inner in parts])
    return clone
