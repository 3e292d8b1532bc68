"""Checks of settings: which precision, and whether every part asks for the same (NT801-NT807)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, configuration_check
from nantrap.doctor.configuration.precision import Asked, computation, half_flags, precision, says_no
from nantrap.doctor.configuration.setting import Setting, SettingSource, number, switch
from nantrap.doctor.repository import Repository

_SHORT: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_ROLES: Final = {"trainer": "the trainer", "launcher": "the launcher", "deepspeed": "DeepSpeed", "code": "the code"}


def asked_dtype(source: SettingSource) -> tuple[str, Setting] | None:
    """The dtype that a source names, for comparison with another source."""
    asked = computation(source)
    return (asked.dtype, asked.setting) if asked is not None and asked.dtype in _SHORT else None


@configuration_check("precision_mismatch")
def precision_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The trainer, the launcher and DeepSpeed name different dtypes."""
    if source.role == "launcher":
        pairs = repository.partners(source, "deepspeed")
    elif source.role in ("trainer", "code"):
        pairs = [*repository.partners(source, "launcher"), *repository.partners(source, "deepspeed")]
    else:
        return
    mine = asked_dtype(source)
    if mine is None or (source.kind == "argparse" and _overridden(source, mine[1], repository)):
        return
    for role in ("launcher", "deepspeed"):
        theirs = repository.agreed([each for each in pairs if each.role == role], asked_dtype)
        if theirs is not None and theirs[0] != mine[0]:
            there = theirs[1]
            yield Sighting(
                "high",
                mine[1].line,
                mine[1].value,
                f"{_ROLES[source.role]} asks for {_SHORT[mine[0]]} ({mine[1].name}), {_ROLES[role]} for "
                f"{_SHORT[theirs[0]]} ({there.name} at {there.file}:{there.line})",
                f"name {_SHORT[theirs[0]]} in both, or leave one of them out",
                mine[1].file,
            )
            return


@configuration_check("both_half_flags")
def both_half_flags(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """fp16 and bf16 are both switched on."""
    fp16, bf16 = half_flags(source)
    for first in fp16:
        for second in bf16:
            if _section(first) == _section(second):
                yield Sighting(
                    "high",
                    second.line,
                    True,
                    f"{first.name} (line {first.line}) and {second.name} are both on",
                    "keep one: bf16 where the hardware has it, else fp16",
                    second.file,
                )
                return


@configuration_check("fp16_without_loss_scaling")
def fp16_without_loss_scaling(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """float16 is used without a loss scaler."""
    for each in source.all("precision"):
        found = precision(each.value)
        if found is not None and found.dtype == "float16" and found.weights:
            yield Sighting(
                "high",
                each.line,
                each.value,
                f"{each.name} is {each.value}: weights, gradients and optimizer state in float16, without loss scaling",
                "use bf16-mixed, or 16-mixed, which scales the loss",
                each.file,
            )


@configuration_check("amp_without_dtype")
def amp_without_dtype(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Mixed precision is switched on, but nothing says in which dtype."""
    asked = computation(source)
    if source.role != "trainer" or asked is None or asked.dtype != "amp" or asked.setting.value == "amp":
        return
    if any(switch(each.value) is not False and each.known for each in source.all("scaler")) or repository.scales:
        return
    if repository.names_dtype:
        return
    if any(
        each.key in ("precision", "weight_dtype", "loss_scale")
        and each.value is not True
        and not says_no(each.value)
        and each.value is not None
        for each in source.settings
    ):
        return
    if not any(source.first(key) for key in ("lr", "optimizer", "epochs", "total_steps", "batch_size", "min_lr")):
        return
    if any(not each.known for each in (*source.all("fp16"), *source.all("bf16"))):
        return
    theirs = repository.agreed(repository.partners(source, "launcher"), asked_dtype)
    named = "amp" in asked.setting.names[-1] or "amp" in asked.setting.parent
    bf16 = theirs is not None and theirs[0] == "bfloat16"
    beside = (
        f", while the launcher says bf16 ({theirs[1].file}:{theirs[1].line})" if bf16 and theirs is not None else ""
    )
    yield Sighting(
        "high" if bf16 else "medium" if named else "low",
        asked.setting.line,
        True,
        f"{asked.setting.name} is on and no dtype is named: torch.autocast on CUDA takes float16, "
        f"without loss scaling unless the code has a GradScaler{beside}",
        "name the dtype: bf16: true, and dtype=torch.bfloat16 in torch.autocast",
        asked.setting.file,
    )


@configuration_check("scaler_with_bf16")
def scaler_with_bf16(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A loss scaler is used exactly when training is in bfloat16."""
    asked = computation(source)
    if asked is None or asked.dtype != "bfloat16" or source.role != "trainer":
        return
    for each in source.all("scaler"):
        if switch(each.value) and each.value is not None:
            yield Sighting(
                "medium",
                each.line,
                each.value,
                f"{each.name} is on and training is in bf16 ({asked.setting.name}, line {asked.setting.line})",
                "switch the scaler off; bf16 needs none",
                each.file,
            )


@configuration_check("explicit_no_overrides_launcher")
def explicit_no_overrides_launcher(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The code says mixed_precision="no" although the launcher asks for half precision."""
    if source.role != "code":
        return
    setting = next((each for each in source.settings if each.names == ("mixed_precision",)), None)
    if setting is None or not setting.known or not says_no(setting.value):
        return
    yield from overridden_by_no(source, setting, repository)


def overridden_by_no(source: SettingSource, setting: Setting, repository: Repository) -> Iterator[Sighting]:
    """The finding of NT806 at a setting, if the launcher asks for half precision."""
    theirs = repository.agreed(repository.partners(source, "launcher"), asked_dtype)
    if theirs is not None and theirs[0] in ("float16", "bfloat16"):
        yield Sighting(
            "high",
            setting.line,
            "no",
            f'mixed_precision="no" overrides the launcher, which asks for {_SHORT[theirs[0]]} '
            f"({theirs[1].file}:{theirs[1].line})",
            "drop the argument; the launcher decides then",
            setting.file,
        )


@configuration_check("static_loss_scale")
def static_loss_scale(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """fp16 runs with a loss scale that never changes."""
    for each in source.all("loss_scale"):
        scale = number(each.value)
        if scale is None or scale <= 0 or not _fp16_beside(source, each) or _is_weight(source, each):
            continue
        yield Sighting(
            "medium",
            each.line,
            each.value,
            f"{each.name} is {each.value}: the loss scale of fp16 is fixed and cannot follow the gradients",
            "set it to 0 (or dynamic), so that it adapts",
            each.file,
        )


def _fp16_beside(source: SettingSource, scale: Setting) -> bool:
    if scale.parent and scale.parent[-1] in ("fp16", "amp", "mixed_precision"):
        switches = [each for each in source.all("fp16") if each.names[: len(scale.parent)] == scale.parent]
        if switches:
            return all(switch(each.value) is True for each in switches)
    asked: Asked | None = computation(source)
    return asked is not None and asked.dtype == "float16"


def _is_weight(source: SettingSource, scale: Setting) -> bool:
    beside = [each.names[-1] for each in source.settings if each.parent == scale.parent and each is not scale]
    return any(name.endswith(("_weight", "_loss", "_coef", "_lambda")) and "loss" in name for name in beside)


def _section(setting: Setting) -> tuple[str, ...]:
    """The section of a switch; that of `fp16.enabled` is the one that contains `fp16`."""
    return setting.names[:-2] if setting.names[-1] in ("enabled", "enable") else setting.parent


def _overridden(source: SettingSource, setting: Setting, repository: Repository) -> bool:
    """Whether a launch line gives another value for an argparse default."""
    for line in repository.sources:
        if line.kind == "shell" and line.script and source.file.endswith(line.script.rsplit("/", 1)[-1]):
            return True
    return False
