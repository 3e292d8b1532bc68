"""Checks of settings: learning rate and warm-up (NT809, NT810, NT813, NT814)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, configuration_check
from nantrap.doctor.configuration.setting import Setting, SettingSource, is_adam, number
from nantrap.doctor.repository import Repository

_HIGH: Final = 1e-2
_LONG: Final = 10_000
_SHORT_WARMUP: Final = 100
_SMALL_RATIO: Final = 0.005


def uses_adam(source: SettingSource, setting: Setting | None) -> bool:
    """Whether the optimizer that belongs to a setting is known to be of the Adam family."""
    optimizer = source.near(setting, "optimizer") if setting is not None else source.first("optimizer")
    if optimizer is not None:
        return is_adam(optimizer.value) is True
    return source.framework == "hf" and source.kind != "argparse"  # its default is AdamW


@configuration_check("min_lr_above_lr")
def min_lr_above_lr(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The smallest learning rate is larger than the learning rate itself."""
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
        yield Sighting(
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


@configuration_check("lr_high")
def lr_high(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The learning rate is far above what Adam can use."""
    for each in source.all("lr"):
        rate = number(each.value)
        if rate is None or not _HIGH <= rate < float("inf") or not uses_adam(source, each) or _is_factor(source):
            continue
        optimizer = source.near(each, "optimizer")
        name = optimizer.value if optimizer is not None else "AdamW, the default"
        yield Sighting(
            "high", each.line, each.value, f"{each.name} is {rate:g} with {name}", "begin with 1e-4", each.file
        )


def _is_factor(source: SettingSource) -> bool:
    """Whether a schedule multiplies the learning rate by d^-0.5 and the like, so that 1.0 is an ordinary value."""
    return any(isinstance(each.value, str) and "noam" in each.value.lower() for each in source.settings)


@configuration_check("warmup_too_short")
def warmup_too_short(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A long Adam run has almost no warm-up."""
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
    yield Sighting(
        "low",
        chosen.line,
        chosen.value,
        f"{chosen.name} is {chosen.value} in a run of {int(steps):,} steps with Adam",
        f"warm up for 1 to 3 % of the steps: {int(steps * 0.01):,} to {int(steps * 0.03):,}",
        chosen.file,
    )


@configuration_check("warmup_exceeds_training")
def warmup_exceeds_training(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The warm-up is as long as the training, or longer."""
    for each in source.all("warmup_steps"):
        total = source.near(each, "total_steps")
        warmup, steps = number(each.value), number(total.value) if total is not None else None
        if total is None or warmup is None or steps is None or steps < 1 or warmup < 1 or warmup < steps:
            continue
        yield Sighting(
            "medium",
            each.line,
            each.value,
            f"{each.name} is {warmup:g} and {total.name} is {steps:g}: the learning rate never reaches its peak",
            f"shorten the warm-up to about {max(1, int(steps * 0.03)):,} steps",
            each.file,
        )
