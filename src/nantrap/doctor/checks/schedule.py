"""Checks of settings: learning rate and warm-up (NT809, NT810, NT813, NT814)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Found, configuration_check
from nantrap.doctor.configuration.setting import Setting, Source
from nantrap.doctor.configuration.values import is_adam, number
from nantrap.doctor.repository import Repository

_HIGH: Final = 1e-2
_LONG: Final = 10_000
_SHORT_WARMUP: Final = 100
_SMALL_RATIO: Final = 0.005


def uses_adam(source: Source, setting: Setting | None) -> bool:
    """Whether the optimizer that belongs to a setting is known to be of the Adam family."""
    optimizer = source.near(setting, "optimizer") if setting is not None else source.first("optimizer")
    if optimizer is not None:
        return is_adam(optimizer.value) is True
    return source.framework == "hf" and source.kind != "argparse"  # its default is AdamW


@configuration_check("NT809", "min_lr_above_lr")
def min_lr_above_lr(source: Source, repository: Repository) -> Iterator[Found]:
    """The smallest learning rate is larger than the learning rate itself.

    A schedule that should fall then rises, or does nothing at all.

    Example:
        lr: 1e-5
        min_lr: 1e-4

    Why:
        Usually one of the two was lowered after a NaN and the other one was forgotten.

    Fix:
        Swap them, or set `min_lr` to a tenth of `lr`.

    Silent:
        When `min_lr` is smaller. Equal values are reported with low risk: the learning rate is constant.
    """
    for each in source.all("min_lr"):
        least = number(each.value)
        rates = [other for other in source.all("lr") if number(other.value) is not None]
        if least is None or least <= 0 or not rates:
            continue
        beside = source.near(each, "lr")
        peak = number(beside.value) if beside is not None else None
        if beside is None or peak is None or peak <= 0 or least < peak:
            continue
        same = least == peak
        yield Found(
            "low" if same else "medium",
            each.line,
            each.value,
            f"{each.name} is {least:g}, "
            + (
                f"the same as {beside.name}: the learning rate never falls"
                if same
                else f"above {beside.name} = {peak:g}"
            ),
            f"set {each.path[-1]} below {beside.path[-1]}, e.g. {peak / 10:g}"
            if same
            else f"swap {each.name} and {beside.name}",
            each.file,
        )


@configuration_check("NT810", "lr_high")
def lr_high(source: Source, repository: Repository) -> Iterator[Found]:
    """The learning rate is far above what Adam can use.

    Adam divides by the size of the gradient, so every weight moves by about the learning rate at each step. At 0.01 a
    weight of size 0.02 changes its sign every other step.

    Example:
        optimizer: adamw
        lr: 0.1

    Why:
        The number was chosen for SGD, whose learning rates are a hundred times larger.

    Fix:
        Begin with 1e-4 (3e-4 for small models).

    Silent:
        With SGD, LARS, Muon, Prodigy, with Noam schedules, and where the optimizer is not known.
    """
    for each in source.all("lr"):
        rate = number(each.value)
        if rate is None or not _HIGH <= rate < float("inf") or not uses_adam(source, each) or _is_factor(source):
            continue
        optimizer = source.near(each, "optimizer")
        name = optimizer.value if optimizer is not None else "AdamW, the default"
        yield Found("high", each.line, each.value, f"{each.name} is {rate:g} with {name}", "begin with 1e-4", each.file)


def _is_factor(source: Source) -> bool:
    """Whether a schedule multiplies the learning rate by d^-0.5 and the like, so that 1.0 is an ordinary value."""
    return any(isinstance(each.value, str) and "noam" in each.value.lower() for each in source.settings)


@configuration_check("NT813", "warmup_too_short")
def warmup_too_short(source: Source, repository: Repository) -> Iterator[Found]:
    """A long Adam run has almost no warm-up.

    Adam's second moment is an average over about 1,000 steps. Before it has settled, single gradients decide the step
    size, and the first hundred steps are where runs diverge.

    Example:
        optimizer: adamw
        warmup_steps: 10
        max_steps: 100000

    Why:
        The estimate of the gradient's size is taken from a handful of batches.

    Fix:
        Warm up for 1 to 3 % of the steps.

    Silent:
        When the warm-up is given in epochs, as a ratio of at least 0.005, or the run is short.
    """
    total = source.first("total_steps")
    steps = number(total.value) if total is not None else None
    if total is None or steps is None or steps < _LONG:
        return
    ratio = source.first("warmup_ratio")
    share = number(ratio.value) if ratio is not None else None
    count = source.first("warmup_steps")
    if ratio is not None and (share is None or share >= _SMALL_RATIO):
        return
    if source.first("warmup_epochs") is not None and number(source.value("warmup_epochs")) != 0:
        return
    chosen = count if count is not None else ratio
    if chosen is None or not uses_adam(source, chosen):
        return
    warmup = number(count.value) if count is not None else (share or 0.0) * steps
    if count is not None and share and share > 0 and not warmup:
        warmup = share * steps
    if warmup is None or not 0 <= warmup < _SHORT_WARMUP or (count is not None and 0 < warmup < 1):
        return
    yield Found(
        "low",
        chosen.line,
        chosen.value,
        f"{chosen.name} is {chosen.value} in a run of {int(steps):,} steps with Adam",
        f"warm up for 1 to 3 % of the steps: {int(steps * 0.01):,} to {int(steps * 0.03):,}",
        chosen.file,
    )


@configuration_check("NT814", "warmup_exceeds_training")
def warmup_exceeds_training(source: Source, repository: Repository) -> Iterator[Found]:
    """The warm-up is as long as the training, or longer.

    The learning rate rises to the end and never falls. The run stops at the moment it becomes unstable.

    Example:
        warmup_steps: 4000
        max_steps: 2000

    Why:
        The number of steps was lowered for a trial and the warm-up was left as it was.

    Fix:
        Shorten the warm-up to a few per cent of the steps.

    Silent:
        When the number of steps is not known.
    """
    for each in source.all("warmup_steps"):
        total = source.near(each, "total_steps")
        warmup, steps = number(each.value), number(total.value) if total is not None else None
        if total is None or warmup is None or steps is None or steps < 1 or warmup < 1 or warmup < steps:
            continue
        yield Found(
            "medium",
            each.line,
            each.value,
            f"{each.name} is {warmup:g} and {total.name} is {steps:g}: the learning rate never reaches its peak",
            f"shorten the warm-up to about {max(1, int(steps * 0.03)):,} steps",
            each.file,
        )
