"""Checks of weights that are in half precision themselves, in settings and in code (NT815-NT817, NT873).

Constants of the optimizer that such weights cannot hold, and training in float16.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from nantrap.doctor.checks.rates import uses_adam
from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.precision import has_adapters, keeps_float32, precision, weights
from nantrap.doctor.configuration.python_file import OPTIMIZERS
from nantrap.doctor.configuration.setting import Setting, SettingSource, is_adam, number, switch
from nantrap.doctor.repository import Repository, resolved_value
from nantrap.doctor.source.expressions import calls_in, dotted, keyword_of, name_of, receiver_of
from nantrap.doctor.source.module import Function, Module

HALF_EPS: Final = 6e-8
"""The smallest positive float16 is 5.96e-8; what is below is zero."""
_SLOW_BETA: Final = 0.998
"""Above it, the decay of the second moment is lost in bfloat16's 8 bits."""
SMALL_RATE: Final = 1e-4
_TINY_RATE: Final = 1e-5
_ANY: Final = re.compile(r"half\(|float16|fp16|bf16")
_EXACT: Final = (
    "FP16_Optimizer", "master_params", "prep_param_lists", "deepspeed", "BF16_Optimizer", "AnyPrecision", "kahan",
    "stochastic_round", "MixedPrecisionPlugin", "fp32_master", "master_weights", "FullyShardedDataParallelPlugin",
)  # fmt: skip
"""Words of code that keeps float32 weights beside, or makes the weights float32 again, as Accelerate's FSDP does."""
_ADAPTERS: Final = (
    "get_peft_model", "LoraConfig", "peft_config", "PeftModel", "load_in_4bit", "load_in_8bit", "BitsAndBytesConfig",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Halved:
    """A model with half-precision weights, and the call that trains it."""

    name: str
    dtype: str
    line: int
    text: str
    trained_by: ast.Call
    function: Function


@configuration_check("eps_below_dtype")
def eps_below_dtype(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The optimizer's eps is zero in the precision of the weights."""
    asked = weights(source)
    if asked is None or asked.dtype != "float16" or exempt(source, repository):
        return
    for each in source.all("eps"):
        eps = number(each.value)
        if eps is not None and 0 <= eps < HALF_EPS:
            yield Sighting.at(
                each,
                "high",
                f"{each.name} is {eps:g}, which is 0 in float16, and the weights are float16 ({asked.setting.name}, "
                f"line {asked.setting.line})",
                "keep the weights in float32 and use mixed precision",
            )


@source_check("eps_below_dtype")
def adam_eps_in_float16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Adam with its eps of 1e-8 on float16 weights."""
    for found in halved_models(module):
        call = found.trained_by
        if found.dtype != "float16" or is_adam(name_of(call.func)) is not True:
            continue
        given = keyword_of(call, "eps")
        eps = number(module.value(given, found.function)) if given is not None else 1e-8
        if eps is not None and eps < HALF_EPS:
            yield Sighting(
                "high",
                call.lineno,
                eps,
                f"eps is {eps:g}{'' if given is not None else ' (the default)'}, which is 0 in float16, and weights "
                f"of {found.name} are float16 (line {found.line})",
                "keep float32 weights and use mixed precision",
            )


@configuration_check("beta_rounds_to_one")
def beta_rounds_to_one(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Adam's beta2 rounds to one in the precision of its state."""
    asked = weights(source)
    if asked is None or asked.dtype != "bfloat16" or exempt(source, repository):
        return
    for each in (*source.all("betas"), *source.all("beta2")):
        beta = second_beta(each.value)
        if beta is not None and _SLOW_BETA < beta < 1:
            yield Sighting.at(
                each,
                "medium",
                f"beta2 is {beta:g} ({each.name}) and the weights are bfloat16 ({asked.setting.name}, line "
                f"{asked.setting.line}): the second moment never decays",
                "keep optimizer state in float32, or use beta2 = 0.95",
            )


@source_check("beta_rounds_to_one")
def adam_beta_in_bfloat16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Adam with beta2 = 0.999 on bfloat16 weights."""
    for found in _bfloat16(module, repository):
        call = found.trained_by
        if is_adam(name_of(call.func)) is not True:
            continue
        given = keyword_of(call, "betas")
        beta = second_beta(module.value(given, found.function)) if given is not None else 0.999
        if beta is not None and _SLOW_BETA < beta < 1:
            yield Sighting(
                "medium",
                call.lineno,
                beta,
                f"beta2 is {beta:g}{'' if given is not None else ' (the default)'} and the weights of {found.name} are "
                f"bfloat16 (line {found.line}): the second moment never decays",
                "keep float32 weights, or use beta2 = 0.95",
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
    yield Sighting.at(
        each,
        "high" if rate <= _TINY_RATE else "medium",
        f"{each.name} is {rate:g} and the weights are bfloat16 ({asked.setting.name}, line {asked.setting.line}): "
        "many updates are rounded away",
        "keep float32 weights with bf16 mixed precision, or use stochastic rounding",
    )


@source_check("bf16_weights_frozen")
def adam_rate_in_bfloat16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Adam with a small learning rate on bfloat16 weights."""
    for found in _bfloat16(module, repository):
        call = found.trained_by
        name = name_of(call.func)
        rate: float | None = None
        line = call.lineno
        if name.endswith("Trainer"):
            rate, line = _trainer_rate(module, repository, found)
        elif is_adam(name) is True:
            given = next(
                (keyword.value for keyword in call.keywords if keyword.arg == "lr"),
                call.args[1] if len(call.args) > 1 else None,
            )
            rate = number(resolved_value(module, given, found.function, repository)) if given is not None else None
        if rate is None or not 0 < rate <= SMALL_RATE:
            continue
        yield Sighting(
            "high" if rate <= _TINY_RATE else "medium",
            line,
            rate,
            f"the learning rate is {rate:g} and the weights of {found.name} are bfloat16 (line {found.line}): "
            "many updates are rounded away",
            "keep float32 weights with bf16 mixed precision, or use stochastic rounding",
        )


@source_check("half_weights_trained")
def half_weights_trained(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The weights themselves are float16, and they are trained."""
    for found in halved_models(module):
        if found.dtype == "float16":
            yield Sighting(
                "high",
                found.line,
                found.text,
                f"{found.name} has float16 weights and is trained (line {found.trained_by.lineno})",
                "keep float32 weights and use mixed precision",
            )


def second_beta(value: Any) -> float | None:
    """beta2 of a list, a text like "(0.9, 0.999)", or the number itself."""
    if isinstance(value, list):
        return number(value[1]) if len(value) == 2 else None
    if isinstance(value, str):
        parts = re.findall(r"[\d.]+(?:e-?\d+)?", value)
        return number(parts[1]) if len(parts) == 2 else None
    return number(value)


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


def halved_models(module: Module) -> list[Halved]:
    """Models of a file that are put into float16 or bfloat16 and passed to an optimizer or a Trainer."""
    if "halved" not in module.kept:
        module.kept["halved"] = _find(module)
    found: list[Halved] = module.kept["halved"]
    return found


def _find(module: Module) -> list[Halved]:
    """The models of a file that are converted to half precision and then trained."""
    if not _ANY.search(module.text) or any(word in module.text for word in (*_EXACT, *_ADAPTERS)):
        return []
    trained = _trained(module)
    found = []
    for name, (call, function) in trained.items():
        for chain, line in _conversions(module, name):
            dtype = _dtype(module, chain, function)
            if dtype is not None:
                found.append(Halved(name, dtype, line, ast.unparse(chain)[:80], call, function))
                break
    return found


def _trained(module: Module) -> dict[str, tuple[ast.Call, Function]]:
    """The models whose parameters an optimizer gets, or that a Trainer gets."""
    found: dict[str, tuple[ast.Call, Function]] = {}
    for leaf, sites in module.calls.items():
        if leaf in OPTIMIZERS:
            for call, place in sites:
                if place.silent or (not call.args and not call.keywords):
                    continue
                first = call.args[0] if call.args else call.keywords[0].value
                given = place.function.given(first, call.lineno) or first
                for each in calls_in(given, "parameters", "named_parameters"):
                    owner = receiver_of(each, "parameters", "named_parameters")
                    if owner is not None and dotted(owner):
                        found.setdefault(dotted(owner), (call, place.function))
        elif leaf.endswith("Trainer") and leaf[:1].isupper():
            for call, place in sites:
                model = next((k.value for k in call.keywords if k.arg == "model"), call.args[0] if call.args else None)
                if model is not None and dotted(model) and not place.silent:
                    found.setdefault(dotted(model), (call, place.function))
    return found


def _conversions(module: Module, name: str) -> list[tuple[ast.expr, int]]:
    """The expressions that decide the precision of a model, the last one first."""
    found: list[tuple[ast.expr, int]] = []
    for function in module.functions:
        for line, value in function.assigned.get(name, ()):
            if not function.silent:
                found.append((value, line))
    for leaf in ("half", "to", "bfloat16", "float"):
        for call, place in module.calls.get(leaf, ()):
            statement = place.statement
            if not isinstance(statement, ast.Expr) or place.conditional or place.silent:
                continue
            root: ast.AST = statement.value
            while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute):
                root = root.func.value
            if dotted(root) == name:
                found.append((statement.value, call.lineno))
    return sorted(found, key=lambda each: each[1], reverse=True)


def _dtype(module: Module, node: ast.expr, function: Function) -> str | None:
    """`float16` or `bfloat16` if an expression makes a model of that precision."""
    while isinstance(node, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        name = name_of(node.func)
        if name == "half":
            return "float16"
        if name == "bfloat16":
            return "bfloat16"
        if name == "float":
            return "float32"
        given = [keywords[key] for key in ("dtype", "torch_dtype") if key in keywords]
        if name == "to":
            given += list(node.args)
        if name in ("to", "from_pretrained", "from_config"):
            for each in given:
                found = precision(module.value(each, function))
                if found is not None:
                    return found.dtype if found.dtype != "float32" else None
        if not isinstance(node.func, ast.Attribute):
            return None
        node = node.func.value
    return None


def _bfloat16(module: Module, repository: Repository) -> Iterator[Halved]:
    """Trained bfloat16 models that neither DeepSpeed nor adapters keep exact."""
    here = SettingSource(module.file, "call", (), "code")
    for found in halved_models(module):
        if found.dtype != "bfloat16":
            continue
        beside = [each for each in repository.by_role("trainer") if each.file == module.file]
        if repository.partners(here, "deepspeed") or any(has_adapters(each) for each in beside):
            return
        if any(
            "deepspeed" in str(s.value).lower() for each in repository.partners(here, "launcher") for s in each.settings
        ):
            return
        yield found


def _trainer_rate(module: Module, repository: Repository, found: Halved) -> tuple[float | None, int]:
    for source in repository.by_role("trainer"):
        if source.file == module.file and source.framework == "hf":
            rate = source.first("lr")
            optimizer = source.first("optimizer")
            if rate is not None and (optimizer is None or is_adam(optimizer.value)):
                return number(rate.value), rate.line
    return None, found.trained_by.lineno
