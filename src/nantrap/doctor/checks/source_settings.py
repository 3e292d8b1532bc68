"""Checks of source code: settings in calls (NT806, NT808, NT811, NT815-NT818, NT824)."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from nantrap.doctor.checks.keeping import LOW_TEMPERATURE
from nantrap.doctor.checks.precision import asked_dtype
from nantrap.doctor.checks.registry import Found, source_check
from nantrap.doctor.checks.update import WIDE_NORM
from nantrap.doctor.checks.weights import HALF_EPS, SLOW_BETA, SMALL_RATE, TINY_RATE, second_beta
from nantrap.doctor.configuration.constants import dotted
from nantrap.doctor.configuration.names import plain
from nantrap.doctor.configuration.precision import has_adapters
from nantrap.doctor.configuration.setting import UNKNOWN, Source
from nantrap.doctor.configuration.values import is_adam, number, says_no
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.flow import flow_of, follows, is_optimizer
from nantrap.doctor.source.halved import Halved, halved_models
from nantrap.doctor.source.module import Function, Module
from nantrap.doctor.source.wording import name_of

_MIN_LR: Final = re.compile(r"^_?(min_lr|lr_min|eta_min|min_learning_rate|minimum_lr|end_lr|final_lr)$")
_BASE_LR: Final = re.compile(r"(^|_)(lr|learning_rate|base_lr|max_lr|peak_lr|init_lr|initial_lr)$")
_A_RATIO: Final = 1e-2
"""A smallest rate of this size is a share of the peak already."""


@source_check("NT806", "explicit_no_overrides_launcher")
def accelerator_says_no(module: Module, repository: Repository) -> Iterator[Found]:
    """`Accelerator(mixed_precision=...)` whose value is a choice, or is in a configuration file."""
    for call, place in module.sites("Accelerator"):
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "mixed_precision"), None)
        if given is None or (isinstance(given, ast.Constant) and module.value(given) is not UNKNOWN):
            continue
        here = Source(module.file, "call", (), "code", line=call.lineno)
        theirs = repository.agreed(repository.partners(here, "launcher"), asked_dtype)
        if theirs is None or theirs[0] not in ("float16", "bfloat16"):
            continue
        choices = _choices(module, given, place.function, repository)
        names = {"bf16": "bfloat16", "fp16": "float16"}
        if any(says_no(each) for each in choices) and not any(names.get(str(each)) == theirs[0] for each in choices):
            yield Found(
                "high",
                call.lineno,
                ast.unparse(given),
                f'mixed_precision={ast.unparse(given)} can be "no" and is never {theirs[0]}, which the launcher '
                f"asks for ({theirs[1].file}:{theirs[1].line})",
                "drop the argument; the launcher decides then",
            )


@source_check("NT807", "static_loss_scale")
def apex_loss_scale(module: Module, repository: Repository) -> Iterator[Found]:
    """`amp.initialize(..., loss_scale=128.0)` of apex."""
    for call, place in module.sites("initialize"):
        if "amp" not in module.resolve(call.func):
            continue
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "loss_scale"), None)
        scale = number(module.value(given, place.function)) if given is not None else None
        if scale is not None and scale > 0:
            yield Found(
                "medium", call.lineno, scale, f"the loss scale is fixed at {scale:g}", 'use loss_scale="dynamic"'
            )


@source_check("NT808", "min_lr_as_factor")
def min_lr_as_factor(module: Module, repository: Repository) -> Iterator[Found]:
    """A LambdaLR function returns a smallest learning rate where a factor is expected.

    LambdaLR multiplies the initial rate by what the function returns. `max(factor, 1e-6)` with an initial rate of 1e-5
    ends at 1e-11: training has stopped, and nothing says so.

    Example:
        LambdaLR(optimizer, lambda step: max(1 - step / total, min_lr))

    Why:
        1e-6 was meant as a learning rate and is used as a factor.

    Fix:
        Divide by the initial rate:

            - max(1 - step / total, min_lr)
            + max(1 - step / total, min_lr / lr)

    Silent:
        When the function divides by the initial rate, or the number is a share (0.01 and more).
    """
    for call, place in module.sites("LambdaLR"):
        given = [keyword.value for keyword in call.keywords if keyword.arg == "lr_lambda"] or list(call.args[1:2])
        for node in given:
            for function, body in _functions(module, node, place.function, call.lineno):
                floor = _absolute_floor(module, body, function, repository)
                if floor is not None:
                    yield Found(
                        "medium",
                        floor.lineno,
                        ast.unparse(floor)[:80],
                        f"LambdaLR multiplies by what the function returns, and {ast.unparse(floor)[:60]} is a "
                        "learning rate: the smallest rate is the product of both",
                        "divide by the initial rate: min_lr / lr",
                    )
                    break


@source_check("NT811", "clip_ineffective")
def clip_call_ineffective(module: Module, repository: Repository) -> Iterator[Found]:
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
        yield Found(
            "low" if used and norm >= 1e4 else "medium",
            call.lineno,
            norm,
            f"gradients are clipped at a norm of {norm:g}: it clips nothing",
            'write float("inf") if only the norm is wanted, else 1.0',
        )


@source_check("NT815", "eps_below_dtype")
def adam_eps_in_float16(module: Module, repository: Repository) -> Iterator[Found]:
    """Adam with its eps of 1e-8 on float16 weights."""
    for found in halved_models(module):
        call = found.trained_by
        if found.dtype != "float16" or is_adam(name_of(call.func)) is not True:
            continue
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "eps"), None)
        eps = number(module.value(given, found.function)) if given is not None else 1e-8
        if eps is not None and eps < HALF_EPS:
            yield Found(
                "high",
                call.lineno,
                eps,
                f"eps is {eps:g}{'' if given is not None else ' (the default)'}, which is 0 in float16, and weights "
                f"of {found.name} are float16 (line {found.line})",
                "keep float32 weights and use mixed precision",
            )


@source_check("NT816", "beta_rounds_to_one")
def adam_beta_in_bfloat16(module: Module, repository: Repository) -> Iterator[Found]:
    """Adam with beta2 = 0.999 on bfloat16 weights."""
    for found in _bfloat16(module, repository):
        call = found.trained_by
        if is_adam(name_of(call.func)) is not True:
            continue
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "betas"), None)
        beta = second_beta(module.value(given, found.function)) if given is not None else 0.999
        if beta is not None and SLOW_BETA < beta < 1:
            yield Found(
                "medium",
                call.lineno,
                beta,
                f"beta2 is {beta:g}{'' if given is not None else ' (the default)'} and the weights of {found.name} are "
                f"bfloat16 (line {found.line}): the second moment never decays",
                "keep float32 weights, or use beta2 = 0.95",
            )


@source_check("NT817", "bf16_weights_frozen")
def adam_rate_in_bfloat16(module: Module, repository: Repository) -> Iterator[Found]:
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
            rate = number(_resolved(module, given, found.function, repository)) if given is not None else None
        if rate is None or not 0 < rate <= SMALL_RATE:
            continue
        yield Found(
            "high" if rate <= TINY_RATE else "medium",
            line,
            rate,
            f"the learning rate is {rate:g} and the weights of {found.name} are bfloat16 (line {found.line}): "
            "many updates are rounded away",
            "keep float32 weights with bf16 mixed precision, or use stochastic rounding",
        )


@source_check("NT818", "temperature_too_low")
def loss_temperature(module: Module, repository: Repository) -> Iterator[Found]:
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
        arguments = [*node.args.posonlyargs, *node.args.args]
        pairs = list(zip(arguments[len(arguments) - len(node.args.defaults) :], node.args.defaults, strict=True))
        pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        for argument, default in pairs:
            value = number(module.value(default)) if argument.arg in words else None
            if value is not None and 0 <= value < LOW_TEMPERATURE:
                yield _temperature(default.lineno, argument.arg, value)


@source_check("NT824", "resume_overrides_lr")
def resume_overrides_lr(module: Module, repository: Repository) -> Iterator[Found]:
    """Resuming restores the old learning rate, whatever the configuration says now.

    The optimizer's state holds the learning rate of each group and the scheduler's the base learning rate. Loading both
    after the learning rate was lowered in the configuration brings the old one back.

    Example:
        # config: lr: 1e-4, resume: last.pt (saved at 5e-4)
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])

    Why:
        A state dict is loaded over what the constructor set.

    Fix:
        Set the learning rate again after loading, in the groups and in `scheduler.base_lrs`, or leave the scheduler's
        state out:

            + for group in optimizer.param_groups:
            +     group["lr"] = group["initial_lr"] = lr

    Silent:
        When the learning rate is set after loading.
    """
    if "load_state_dict" not in module.calls:
        return
    loads = [(call, place) for call, place in module.sites("load_state_dict") if isinstance(call.func, ast.Attribute)]
    optimizers = [each for each in loads if is_optimizer(module, dotted(each[0].func.value))]  # type: ignore[attr-defined]
    schedulers = [each for each in loads if "sched" in ast.unparse(each[0].func.value).lower()]  # type: ignore[attr-defined]
    if not optimizers or not schedulers:
        return
    resume, rate = _set_here(module, repository, "resume"), _set_here(module, repository, "lr")
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
    yield Found(
        "medium",
        call.lineno,
        resume,
        f"resuming from {resume} loads the optimizer's and the scheduler's state, which brings the old learning rate "
        f"back; the configured {rate} has no effect",
        'set group["lr"] after loading',
    )


def _choices(module: Module, node: ast.expr, function: Function, repository: Repository) -> list[Any]:
    """The values that an expression can have, as far as they are known."""
    if isinstance(node, ast.IfExp):
        return [
            *_choices(module, node.body, function, repository),
            *_choices(module, node.orelse, function, repository),
        ]
    name = dotted(node)
    if name:
        given = function.latest(name, node.lineno)
        if given is not None:
            return _choices(module, given, function, repository)
    value = _resolved(module, node, function, repository)
    return [] if value is UNKNOWN else [value]


def _resolved(module: Module, node: ast.expr, function: Function, repository: Repository) -> Any:
    """A value in the code, else the value in the settings near the file under the same name."""
    value = module.value(node, function)
    if value is not UNKNOWN and not isinstance(value, list):
        leaf = plain(name_of(node))
        override = _from_lines(module, repository, leaf) if leaf in module.settings.defaults else UNKNOWN
        return value if override is UNKNOWN else override
    leaf = plain(name_of(node))
    if not leaf:
        return UNKNOWN
    found = {
        repr(setting.value): setting.value
        for source in repository.by_role("trainer")
        if source.file != module.file
        for setting in source.settings
        if setting.names[-1] == leaf and setting.known
    }
    return next(iter(found.values())) if len(found) == 1 else UNKNOWN


def _from_lines(module: Module, repository: Repository, name: str) -> Any:
    """The value that shell scripts give this setting when they start the module; unknown if they differ."""
    stem = module.file.replace("\\", "/").rsplit("/", 1)[-1]
    found = [
        setting.value
        for source in repository.sources
        if source.kind == "shell" and source.script.rsplit("/", 1)[-1] == stem
        for setting in source.settings
        if setting.names[-1] == name and setting.known
    ]
    return found[0] if len({repr(each) for each in found}) == 1 else UNKNOWN


def _set_here(module: Module, repository: Repository, key: str) -> Any:
    """What a key is set to: in a launch line, in the file itself, or in the settings near it."""
    beside = repository.configured(module.file, key)
    for source in repository.sources:
        if source.file == module.file and source.kind != "argparse":
            setting = source.first(key)
            if setting is not None and setting.known and setting.value is not None:
                return setting.value
    if beside is not None:
        return beside[0]
    for source in repository.sources:
        if source.file == module.file and source.kind == "argparse":
            setting = source.first(key)
            if setting is not None and setting.known:
                return setting.value
    return UNKNOWN


def _is_path(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and value.lower() not in ("none", "null", "false", "no")
    return (isinstance(value, int) and not isinstance(value, bool) and value > 0) or value is True


def _functions(
    module: Module, node: ast.expr, function: Function, line: int
) -> Iterator[tuple[Function, list[ast.expr]]]:
    """The function that a schedule is made of, and the expressions it returns."""
    if isinstance(node, (ast.List, ast.Tuple)):
        for item in node.elts:
            yield from _functions(module, item, function, line)
        return
    if isinstance(node, ast.Call):  # a factory, or functools.partial
        inner = node.args[0] if name_of(node.func) == "partial" and node.args else node.func
        yield from _functions(module, inner, function, line)
        return
    if isinstance(node, ast.Lambda):
        yield function, [node.body]
        return
    name = name_of(node)
    given = function.latest(dotted(node), line) if dotted(node) else None
    if isinstance(given, ast.Lambda):
        yield function, [given.body]
        return
    for found in module.by_name.get(name, ()):
        yield found, [each for each in ast.walk(found.node) if isinstance(each, (ast.Call, ast.BinOp))]


def _absolute_floor(
    module: Module, returned: list[ast.expr], function: Function, repository: Repository
) -> ast.Call | None:
    """The `max(..., min_lr)` of a factor that a scheduler multiplies by, where that is a learning rate."""
    for value in returned:
        for each in ast.walk(value):
            if (
                isinstance(each, ast.BinOp)
                and isinstance(each.op, ast.Div)
                and _BASE_LR.search(plain(name_of(each.right)))
            ):
                return None
    for value in returned:
        for each in ast.walk(value):
            if isinstance(each, ast.Call) and name_of(each.func) in ("max", "maximum"):
                for argument in each.args:
                    if _MIN_LR.match(plain(name_of(argument))) and _is_rate(module, argument, function, repository):
                        return each
    return None


def _is_rate(module: Module, node: ast.expr, function: Function, repository: Repository) -> bool:
    """Whether a smallest learning rate is absolute: not divided by the base learning rate, and not a factor."""
    at: Function | None = function
    while at is not None:
        given = at.latest(dotted(node), node.lineno)
        if given is not None and any(isinstance(each, ast.Div) for each in ast.walk(given)):
            return False
        at = at.parent
    value = number(_resolved(module, node, function, repository))
    return value is None or 0 < value < _A_RATIO


def _bfloat16(module: Module, repository: Repository) -> Iterator[Halved]:
    """Trained bfloat16 models that neither DeepSpeed nor adapters keep exact."""
    here = Source(module.file, "call", (), "code")
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


def _temperature(line: int, name: str, value: float) -> Found:
    return Found(
        "medium",
        line,
        value,
        f"{name} of a loss is {value:g}" + (f": logits are multiplied by {1 / value:.0f}" if value else ""),
        "use at least 0.04",
    )
