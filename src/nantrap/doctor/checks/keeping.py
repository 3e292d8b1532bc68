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


@configuration_check("nan_filter_hides")
def nan_filter_hides(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The Trainer replaces NaN losses in its log by the average of the others."""
    found = source.first("nan_filter")
    if found is not None:
        if switch(found.value):
            yield Sighting.at(
                found,
                "medium",
                f"{found.name} is on: a NaN loss does not show in the log",
                "logging_nan_inf_filter=False",
            )
        return
    settings = [
        each for each in source.settings if each.key in ("lr", "micro_batch", "total_steps", "epochs", "bf16", "fp16")
    ]
    if source.framework == "hf" and source.kind in ("call", "yaml", "json") and settings:
        line = source.line if source.kind == "call" else settings[0].line
        yield Sighting(
            "low",
            line,
            None,
            "logging_nan_inf_filter is not set, and its default hides a NaN loss in the log",
            "logging_nan_inf_filter=False",
        )


@configuration_check("checkpoints_too_rare")
def checkpoints_too_rare(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A long run saves no checkpoint, or only one at its end."""
    total = source.first("total_steps")
    steps = number(total.value) if total is not None else None
    if total is None or steps is None or steps < _LONG:
        return
    found: Setting | None = None
    why = ""
    strategy = source.first("save_strategy")
    off = source.first("save_switch")
    interval = source.first("save_steps")
    if strategy is not None and strategy.value in ("no", False):
        found, why = strategy, "nothing is saved"
    elif off is not None and off.names[-1] != "checkpointing" and switch(off.value) is False:
        found, why = off, "nothing is saved"
    elif interval is not None and interval.known and (strategy is None or strategy.value == "steps"):
        every = number(interval.value)
        if every is None:
            if interval.value is None or interval.value is False:
                found, why = interval, "nothing is saved"
        elif every <= 0 and not isinstance(interval.value, bool):
            found, why = interval, "nothing is saved"
        elif every >= steps:
            found, why = interval, "the first checkpoint is the last"
    if found is not None:
        yield Sighting.at(
            found,
            "medium",
            f"{found.name} is {found.value} in a run of {int(steps):,} steps: {why}",
            "save every 1,000 steps",
        )


@configuration_check("keep_last_too_small")
def keep_last_too_small(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Only the newest checkpoint is kept."""
    for each in source.all("keep"):
        if whole(each.value) != 1 or isinstance(each.value, bool):
            continue
        if any(_keeps(other) for other in source.all("keep_best")):
            continue
        yield Sighting.at(each, "low", f"{each.name} keeps one checkpoint", "keep 3")


@source_check("resume_overrides_lr")
def resume_overrides_lr(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Resuming restores the old learning rate, whatever the configuration says now."""
    if "load_state_dict" not in module.calls:
        return
    loads = [(call, place) for call, place in module.sites("load_state_dict") if isinstance(call.func, ast.Attribute)]
    optimizers = [each for each in loads if is_optimizer(module, dotted(each[0].func.value))]  # type: ignore[attr-defined]
    schedulers = [each for each in loads if "sched" in ast.unparse(each[0].func.value).lower()]  # type: ignore[attr-defined]
    if not optimizers or not schedulers:
        return
    resume, rate = configured_value(module, repository, "resume"), configured_value(module, repository, "lr")
    if not _is_path(resume) or number(rate) is None:
        return
    call, place = schedulers[-1]
    for function in {id(p.function): p.function for _, p in (*optimizers, *schedulers)}.values():
        flow = flow_of(module, function)
        for load in flow.of("load"):
            if any(follows(load, other) for other in flow.of("set_lr")):
                return
    last = max(c.lineno for c, _ in (*optimizers, *schedulers))
    if any(
        event.line > last
        for function in module.functions
        for event in flow_of(module, function).of("set_lr")
        if function is place.function
    ):
        return
    yield Sighting(
        "medium",
        call.lineno,
        resume,
        f"resuming from {resume} loads the optimizer's and the scheduler's state, which brings the old learning rate "
        f"back; the configured {rate} has no effect",
        'set group["lr"] after loading',
    )


def _keeps(setting: Setting) -> bool:
    value = setting.value
    return not (value is None or value is False or value == "" or number(value) == 0 or switch(value) is False)


def _is_path(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and value.lower() not in ("none", "null", "false", "no")
    return (isinstance(value, int) and not isinstance(value, bool) and value > 0) or value is True
