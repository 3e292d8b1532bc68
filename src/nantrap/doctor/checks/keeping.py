"""Checks of settings: temperatures, hidden NaN, checkpoints (NT818, NT821-NT823)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, configuration_check
from nantrap.doctor.configuration.setting import Setting, SettingSource, number, switch, whole
from nantrap.doctor.repository import Repository

LOW_TEMPERATURE: Final = 0.02
_LONG: Final = 10_000
_GENERATION: Final = frozenset(
    [
        "top_p",
        "top_k",
        "max_new_tokens",
        "max_tokens",
        "do_sample",
        "num_beams",
        "repetition_penalty",
        "num_generations",
        "max_completion_length",
        "response_length",
        "max_gen_len",
        "n_samples",
        "beam_size",
        "stop_sequences",
        "min_p",
    ]
)
_LOSS_WORDS: Final = re.compile(r"student|teacher|loss|nce|contrast|distill|kd|moco|clip|simclr|dino|infonce|temi")


@configuration_check("temperature_too_low")
def temperature_too_low(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The temperature of a loss is so low that its softmax becomes a step function."""
    for each in source.all("temperature"):
        value = number(each.value)
        if value is None or not 0 <= value < LOW_TEMPERATURE or not _is_loss_temperature(source, each, value):
            continue
        yield Sighting(
            "medium",
            each.line,
            each.value,
            f"{each.name} is {value:g}: logits are multiplied by {1 / value:.0f}" if value else f"{each.name} is 0",
            "use at least 0.04",
            each.file,
        )


@configuration_check("nan_filter_hides")
def nan_filter_hides(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The Trainer replaces NaN losses in its log by the average of the others."""
    found = source.first("nan_filter")
    if found is not None:
        if switch(found.value):
            yield Sighting(
                "medium",
                found.line,
                found.value,
                f"{found.name} is on: a NaN loss does not show in the log",
                "logging_nan_inf_filter=False",
                found.file,
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
        yield Sighting(
            "medium",
            found.line,
            found.value,
            f"{found.name} is {found.value} in a run of {int(steps):,} steps: {why}",
            "save every 1,000 steps",
            found.file,
        )


@configuration_check("keep_last_too_small")
def keep_last_too_small(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Only the newest checkpoint is kept."""
    for each in source.all("keep"):
        if whole(each.value) != 1 or isinstance(each.value, bool):
            continue
        if any(_keeps(other) for other in source.all("keep_best")):
            continue
        yield Sighting("low", each.line, each.value, f"{each.name} keeps one checkpoint", "keep 3", each.file)


def _keeps(setting: Setting) -> bool:
    value = setting.value
    return not (value is None or value is False or value == "" or number(value) == 0 or switch(value) is False)


def _is_loss_temperature(source: SettingSource, setting: Setting, value: float) -> bool:
    """Whether a temperature belongs to a loss, and not to the sampling of text."""
    if {each.names[-1] for each in source.settings if each.parent == setting.parent} & _GENERATION:
        return False
    if _LOSS_WORDS.search("_".join(setting.names)):
        return True
    if any(each.names[-1] in _GENERATION for each in source.settings):
        return False
    training = any(source.first(key) is not None for key in ("lr", "optimizer", "epochs", "total_steps", "clip"))
    return value > 0 and training and len(setting.names[-1]) > 3
