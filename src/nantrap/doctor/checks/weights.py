"""Checks of settings: optimizer constants against the precision of the weights (NT815-NT817)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from nantrap.doctor.checks.registry import Sighting, configuration_check
from nantrap.doctor.checks.schedule import uses_adam
from nantrap.doctor.configuration.precision import has_adapters, keeps_float32, weights
from nantrap.doctor.configuration.setting import Setting, SettingSource, number, switch
from nantrap.doctor.repository import Repository

HALF_EPS: Final = 6e-8
"""The smallest positive float16 is 5.96e-8; what is below is zero."""
SLOW_BETA: Final = 0.998
"""Above it, the decay of the second moment is lost in bfloat16's 8 bits."""
SMALL_RATE: Final = 1e-4
TINY_RATE: Final = 1e-5


def second_beta(value: Any) -> float | None:
    """beta2 of a list, a text like "(0.9, 0.999)", or the number itself."""
    if isinstance(value, list):
        return number(value[1]) if len(value) == 2 else None
    if isinstance(value, str):
        parts = re.findall(r"[\d.]+(?:e-?\d+)?", value)
        return number(parts[1]) if len(parts) == 2 else None
    return number(value)


@configuration_check("eps_below_dtype")
def eps_below_dtype(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The optimizer's eps is zero in the precision of the weights."""
    asked = weights(source)
    if asked is None or asked.dtype != "float16":
        return
    for each in source.all("eps"):
        eps = number(each.value)
        if eps is not None and 0 <= eps < HALF_EPS:
            yield Sighting(
                "high",
                each.line,
                each.value,
                f"{each.name} is {eps:g}, which is 0 in float16, and the weights are float16 ({asked.setting.name}, "
                f"line {asked.setting.line})",
                "keep the weights in float32 and use mixed precision",
                each.file,
            )


@configuration_check("beta_rounds_to_one")
def beta_rounds_to_one(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Adam's beta2 rounds to one in the precision of its state."""
    asked = weights(source)
    if asked is None or asked.dtype != "bfloat16" or exempt(source, repository):
        return
    for each in (*source.all("betas"), *source.all("beta2")):
        beta = second_beta(each.value)
        if beta is not None and SLOW_BETA < beta < 1:
            yield Sighting(
                "medium",
                each.line,
                each.value,
                f"beta2 is {beta:g} ({each.name}) and the weights are bfloat16 ({asked.setting.name}, line "
                f"{asked.setting.line}): the second moment never decays",
                "keep optimizer state in float32, or use beta2 = 0.95",
                each.file,
            )


@configuration_check("bf16_weights_frozen")
def bf16_weights_frozen(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The updates are too small to change bfloat16 weights."""
    asked = weights(source)
    if asked is None or asked.dtype != "bfloat16" or exempt(source, repository):
        return
    each = source.first("lr")
    rate = number(each.value) if each is not None else None
    if each is None or rate is None or not 0 < rate <= SMALL_RATE or not uses_adam(source, each):
        return
    yield Sighting(
        "high" if rate <= TINY_RATE else "medium",
        each.line,
        each.value,
        f"{each.name} is {rate:g} and the weights are bfloat16 ({asked.setting.name}, line {asked.setting.line}): "
        "many updates are rounded away",
        "keep float32 weights with bf16 mixed precision, or use stochastic rounding",
        each.file,
    )


def exempt(source: SettingSource, repository: Repository) -> bool:
    """Whether something keeps the weights exact after all: adapters, DeepSpeed, a master copy."""
    if has_adapters(source) or keeps_float32(source) or uses_deepspeed(source):
        return True
    if any(uses_deepspeed(each) for each in repository.partners(source, "launcher")):
        return True
    return bool(repository.partners(source, "deepspeed"))


def uses_deepspeed(source: SettingSource) -> bool:
    """Whether a source names DeepSpeed."""
    if source.role == "deepspeed":
        return True
    for each in source.settings:
        if each.key == "deepspeed" and each.value not in (None, "", False):
            return True
        if each.key == "distributed_type" and "deepspeed" in str(each.value).lower():
            return True
        if each.names[-1] == "use_deepspeed" and switch(each.value):
            return True
    return bool([each for each in source.settings if _deepspeed_section(each)])


def _deepspeed_section(setting: Setting) -> bool:
    return any(name in ("deepspeed", "deepspeed_config") for name in setting.names[:-1])
