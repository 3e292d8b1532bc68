"""Checks of what a run keeps: its log, its checkpoints, and the rate that resuming brings back (NT821-NT824)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.setting import Setting, SettingSource, number, switch, whole
from nantrap.doctor.repository import Repository, configured_value
from nantrap.doctor.source.expressions import dotted
from nantrap.doctor.source.flow import flow_of, follows, is_optimizer
from nantrap.doctor.source.module import Module

_LONG: Final = 10_000


@configuration_check("nan_filter_hides", "medium", "logging_nan_inf_filter=False")
def nan_filter_hides(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The Trainer replaces NaN losses in its log by the average of the others."""
    found = source.first("nan_filter")
    if found is not None:
        if switch(found.value):
            yield Sighting.at(found, f"{found.name} is on: a NaN loss does not show in the log")
        return
    keys = ("lr", "micro_batch", "total_steps", "epochs", "bf16", "fp16")
    settings = [each for each in source.settings if each.key in keys]
    if source.framework == "hf" and source.kind in ("call", "yaml", "json") and settings:
        line = source.line if source.kind == "call" else settings[0].line
        yield Sighting(
            line, None, "logging_nan_inf_filter is not set, and its default hides a NaN loss in the log", "low"
        )


@configuration_check("checkpoints_too_rare", "medium", "save every 1,000 steps")
def checkpoints_too_rare(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A long run saves no checkpoint, or only one at its end."""
    steps = number(source.value("total_steps"))
    if steps is None or steps < _LONG:
        return
    strategy, off, interval = (source.first(key) for key in ("save_strategy", "save_switch", "save_steps"))
    found, why = None, "nothing is saved"
    if strategy is not None and strategy.value in ("no", False):
        found = strategy
    elif off is not None and off.names[-1] != "checkpointing" and switch(off.value) is False:
        found = off
    elif interval is not None and (strategy is None or strategy.value == "steps"):
        every = 0.0 if interval.value in (None, False) else number(interval.value)
        if every is not None and (every <= 0 or every >= steps):
            found, why = interval, why if every <= 0 else "the first checkpoint is the last"
    if found is not None:
        yield Sighting.at(found, f"{found.name} is {found.value} in a run of {int(steps):,} steps: {why}")


@configuration_check("keep_last_too_small", "low", "keep 3")
def keep_last_too_small(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Only the newest checkpoint is kept."""
    for each in source.all("keep"):
        if whole(each.value) == 1 and not any(map(_keeps, source.all("keep_best"))):
            yield Sighting.at(each, f"{each.name} keeps one checkpoint")


@source_check("resume_overrides_lr", "medium", 'set group["lr"] after loading')
def resume_overrides_lr(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Resuming restores the old learning rate, whatever the configuration says now."""
    loads = [
        (call, place, call.func.value)
        for call, place in module.sites("load_state_dict")
        if isinstance(call.func, ast.Attribute)
    ]
    optimizers = [each for each in loads if is_optimizer(module, dotted(each[2]))]
    schedulers = [each for each in loads if "sched" in ast.unparse(each[2]).lower()]
    if not optimizers or not schedulers:
        return
    resume, rate = configured_value(module, repository, "resume"), configured_value(module, repository, "lr")
    if not _is_path(resume) or number(rate) is None:
        return
    both = (*optimizers, *schedulers)
    last = max(call.lineno for call, _, _ in both)
    for function in {id(place.function): place.function for _, place, _ in both}.values():
        flow = flow_of(module, function)
        after = [(load, other) for load in flow.of("load") for other in flow.of("set_lr")]
        if any(follows(load, other) for load, other in after):
            return
    call, place, _ = schedulers[-1]
    if any(event.line > last for event in flow_of(module, place.function).of("set_lr")):
        return
    yield Sighting(
        call.lineno,
        resume,
        f"resuming from {resume} loads the optimizer's and the scheduler's state, which brings the old learning rate "
        f"back; the configured {rate} has no effect",
    )


def _keeps(setting: Setting) -> bool:
    value = setting.value
    return not (value in (None, "") or number(value) == 0 or switch(value) is False)


def _is_path(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and value.lower() not in ("none", "null", "false", "no")
    return value is True or (number(value) or 0) > 0
