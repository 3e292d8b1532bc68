"""Checks of source code: settings in calls (NT806, NT807, NT811, NT815-NT818)."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from nantrap.doctor.checks.keeping import LOW_TEMPERATURE
from nantrap.doctor.checks.precision import asked_dtype
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.checks.update import WIDE_NORM
from nantrap.doctor.checks.weights import HALF_EPS, SLOW_BETA, SMALL_RATE, TINY_RATE, second_beta
from nantrap.doctor.configuration.precision import has_adapters, says_no
from nantrap.doctor.configuration.setting import UNKNOWN, SettingSource, is_adam, number
from nantrap.doctor.repository import Repository, possible_values, resolved_value
from nantrap.doctor.source.expressions import defaults_of, dotted, name_of
from nantrap.doctor.source.halved import Halved, halved_models
from nantrap.doctor.source.module import Module


@source_check("explicit_no_overrides_launcher")
def accelerator_says_no(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`Accelerator(mixed_precision=...)` whose value is a choice, or is in a configuration file."""
    for call, place in module.sites("Accelerator"):
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "mixed_precision"), None)
        if given is None or (isinstance(given, ast.Constant) and module.value(given) is not UNKNOWN):
            continue
        here = SettingSource(module.file, "call", (), "code", line=call.lineno)
        theirs = repository.agreed(repository.partners(here, "launcher"), asked_dtype)
        if theirs is None or theirs[0] not in ("float16", "bfloat16"):
            continue
        choices = possible_values(module, given, place.function, repository)
        names = {"bf16": "bfloat16", "fp16": "float16"}
        if any(says_no(each) for each in choices) and not any(names.get(str(each)) == theirs[0] for each in choices):
            yield Sighting(
                "high",
                call.lineno,
                ast.unparse(given),
                f'mixed_precision={ast.unparse(given)} can be "no" and is never {theirs[0]}, which the launcher '
                f"asks for ({theirs[1].file}:{theirs[1].line})",
                "drop the argument; the launcher decides then",
            )


@source_check("static_loss_scale")
def apex_loss_scale(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`amp.initialize(..., loss_scale=128.0)` of apex."""
    for call, place in module.sites("initialize"):
        if "amp" not in module.resolve(call.func):
            continue
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "loss_scale"), None)
        scale = number(module.value(given, place.function)) if given is not None else None
        if scale is not None and scale > 0:
            yield Sighting(
                "medium", call.lineno, scale, f"the loss scale is fixed at {scale:g}", 'use loss_scale="dynamic"'
            )


@source_check("clip_ineffective")
def clip_call_ineffective(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`clip_grad_norm_` with a norm that is never reached."""
    for call, place in module.sites("clip_grad_norm_", "clip_grad_norm"):
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        managed = isinstance(call.func, ast.Attribute) and not module.resolve(call.func).startswith("torch")
        given = keywords.get("max_norm") or (call.args[1] if len(call.args) > 1 else None)
        if given is None and managed and len(call.args) == 1:
            given = call.args[0]
        norm = number(module.value(given, place.function)) if given is not None else None
        if norm is None or not WIDE_NORM <= norm < math.inf:
            continue
        used = not isinstance(place.statement, ast.Expr)
        yield Sighting(
            "low" if used and norm >= 1e4 else "medium",
            call.lineno,
            norm,
            f"gradients are clipped at a norm of {norm:g}: it clips nothing",
            'write float("inf") if only the norm is wanted, else 1.0',
        )


@source_check("eps_below_dtype")
def adam_eps_in_float16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Adam with its eps of 1e-8 on float16 weights."""
    for found in halved_models(module):
        call = found.trained_by
        if found.dtype != "float16" or is_adam(name_of(call.func)) is not True:
            continue
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "eps"), None)
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


@source_check("beta_rounds_to_one")
def adam_beta_in_bfloat16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Adam with beta2 = 0.999 on bfloat16 weights."""
    for found in _bfloat16(module, repository):
        call = found.trained_by
        if is_adam(name_of(call.func)) is not True:
            continue
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "betas"), None)
        beta = second_beta(module.value(given, found.function)) if given is not None else 0.999
        if beta is not None and SLOW_BETA < beta < 1:
            yield Sighting(
                "medium",
                call.lineno,
                beta,
                f"beta2 is {beta:g}{'' if given is not None else ' (the default)'} and the weights of {found.name} are "
                f"bfloat16 (line {found.line}): the second moment never decays",
                "keep float32 weights, or use beta2 = 0.95",
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
            "high" if rate <= TINY_RATE else "medium",
            line,
            rate,
            f"the learning rate is {rate:g} and the weights of {found.name} are bfloat16 (line {found.line}): "
            "many updates are rounded away",
            "keep float32 weights with bf16 mixed precision, or use stochastic rounding",
        )


@source_check("temperature_too_low")
def loss_temperature(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss that is made with a low temperature, or has one as its default."""
    words = ("temperature", "temp", "tau", "student_temp", "teacher_temp", "student_temperature", "teacher_temperature")
    for sites in list(module.calls.values()):
        for call, place in sites:
            name = (dotted(call.func) or name_of(call.func)).lower()
            if place.silent or not re.search(r"loss|nce|contrast|distill|criterion", name):
                continue
            for keyword in call.keywords:
                value = number(module.value(keyword.value, place.function)) if keyword.arg in words else None
                if value is not None and 0 <= value < LOW_TEMPERATURE:
                    yield _temperature(keyword.value.lineno, str(keyword.arg), value)
    for function in module.functions:
        node = function.node
        if function.silent or not isinstance(node, ast.FunctionDef):
            continue
        owner = function.owner.name.lower() if function.owner is not None else ""
        if re.search(r"loss|nce|contrast|distill|criterion", owner):
            for name, values in function.assigned.items():
                if name.removeprefix("self.") in words and name.startswith("self."):
                    for line, given in values:
                        value = number(module.value(given, function)) if isinstance(given, ast.Constant) else None
                        if value is not None and 0 <= value < LOW_TEMPERATURE:
                            yield _temperature(line, name, value)
        if not re.search(r"loss|nce|contrast|distill|criterion", owner + " " + node.name.lower()):
            continue
        for argument, default in defaults_of(node.args):
            value = number(module.value(default)) if argument in words else None
            if value is not None and 0 <= value < LOW_TEMPERATURE:
                yield _temperature(default.lineno, argument, value)


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


def _temperature(line: int, name: str, value: float) -> Sighting:
    return Sighting(
        "medium",
        line,
        value,
        f"{name} of a loss is {value:g}" + (f": logits are multiplied by {1 / value:.0f}" if value else ""),
        "use at least 0.04",
    )
