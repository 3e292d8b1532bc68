"""Checks of how the model is called, of its epsilons, and of anomaly detection (NT867-NT869)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.half_weights import HALF_EPS, halved_models
from nantrap.doctor.checks.mathematics import is_of_an_optimizer
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import (
    calls_in,
    defaults_of,
    dotted,
    is_loss,
    keyword_of,
    name_of,
    operations,
    used_in,
)
from nantrap.doctor.source.flow import flow_of
from nantrap.doctor.source.module import CodePlace, Function, Module

_NO_FORWARD: Final = frozenset({
    "train", "eval", "to", "cuda", "cpu", "float", "half", "bfloat16", "modules", "apply", "buffers", "children",
    "step", "copy",
})  # fmt: skip
_NO_FORWARD_BEGINNINGS: Final = (
    "state_dict", "load", "parameters", "named_", "zero_grad", "no_sync", "requires_grad", "register", "save",
    "update", "set_", "get_", "reset", "clip", "log", "print", "freeze", "unfreeze", "count", "num_", "init",
    "share_memory", "ema", "momentum", "on_", "configure",
)  # fmt: skip
_NO_GRADIENT: Final = re.compile(r"variance|gumbel|noise|uniform|register_buffer|quant")
_SAMPLING: Final = re.compile(r"sampl|generat|decode|quanti")
_PROCESSES: Final = re.compile(r"Distributed|\bDDP\b|Accelerator\b|FSDP|deepspeed|Fabric")
_TINY_EPS: Final = 1e-16
_Epsilon = tuple[ast.expr, Function, str]
"""Its expression, the function it is in, and its role: `divisor`, `clamp`, `log` or `argument`."""


@source_check("ddp_bypassed", "high", "call the wrapped model itself")
def ddp_bypassed(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The loss is computed by model.module, which bypasses DistributedDataParallel.

    Silent where the project wraps models in nn.DataParallel alone: one process has no gradients to average.
    """
    if ".module" not in module.text or _wraps_in_threads(repository):
        return
    for leaf in list(module.calls):
        if (leaf in _NO_FORWARD or leaf.startswith(_NO_FORWARD_BEGINNINGS)) and "loss" not in leaf:
            continue
        for call, place in module.sites(leaf):
            wrapped = _wrapped(call.func)
            if wrapped is None or not (call.args or call.keywords) or not _gives_loss(call, place):
                continue
            if _trained_here(module, place) and not _called_whole(dotted(wrapped), place):
                name = ast.unparse(call.func)
                words = f"{name}(...) bypasses DistributedDataParallel: gradients are not averaged"
                yield Sighting(call.lineno, name, words)


@source_check("eps_too_small_for_half", "medium", "use 1e-5")
def eps_too_small_for_half(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An epsilon that is zero in the precision in which it is used."""
    half = any(other is module or _beside(other, module) for other in _float16(repository))
    for node, function, where in _epsilons(module):
        value = function.value(node)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < HALF_EPS:
            continue
        tiny = value <= _TINY_EPS and isinstance(node, ast.Constant) and not _apart(module, node, function)
        if half and (tiny or where != "argument"):
            words = f"eps = {value:g} is 0 in float16, and the model is float16"
            yield Sighting(node.lineno, value, words, "high")
        elif tiny:
            words = f"eps = {value:g} protects nothing: its reciprocal is {1 / value:.0e}"
            yield Sighting(node.lineno, value, words)


@source_check("anomaly_mode_left_on", "low", "remove it")
def anomaly_mode_left_on(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Anomaly detection is always on."""
    for call, place in module.sites("set_detect_anomaly", "detect_anomaly"):
        mode = call.args[0] if call.args else keyword_of(call, "mode")
        if name_of(call.func) == "detect_anomaly":
            on = isinstance(place.statement, ast.With) and not call.args
        else:
            on = isinstance(mode, ast.Constant) and mode.value is True
        if on and not place.conditional:
            yield Sighting(call.lineno, True, "anomaly detection is always on: training is several times slower")


def _wraps_in_threads(repository: Repository) -> bool:
    """Whether the files use DataParallel and nothing that trains in several processes."""
    if "in_threads" not in repository.kept:
        texts = [module.text for module in repository.modules]
        several = any(_PROCESSES.search(text) for text in texts)
        repository.kept["in_threads"] = not several and any("DataParallel(" in text for text in texts)
    return bool(repository.kept["in_threads"])


def _wrapped(func: ast.expr) -> ast.expr | None:
    """`model` of `model.module(...)` and of `self.model.module.training_step(...)`; None of anything else."""
    inner = func if name_of(func) == "module" else getattr(func, "value", None)
    if not isinstance(inner, ast.Attribute) or inner.attr != "module":
        return None
    base = inner.value
    while isinstance(base, ast.Subscript):
        base = base.value
    return base if dotted(base) not in ("self", "", "cls") else None


def _called_whole(wrapped: str, place: CodePlace) -> bool:
    """Whether the same function also calls the wrapped model: then its backward pass averages all gradients."""
    own = place.function.module.calls.get(wrapped.rpartition(".")[2], ())
    return any(at.function is place.function and dotted(other.func) == wrapped for other, at in own)


def _gives_loss(call: ast.Call, place: CodePlace) -> bool:
    """Whether what the call returns is the loss, or goes into it."""
    statement = place.statement
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        flat = [each for target in targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        if any(is_loss(each) or "loss" in name_of(each).lower() for each in flat):
            return True
        names = {dotted(each) for each in flat} - {""}
        for assigned, values in place.function.assigned.items():
            if is_loss(ast.Name(assigned.rsplit(".", 1)[-1])):
                for line, value in values:
                    if line > call.lineno and names & used_in(value):
                        return True
        return False
    return isinstance(statement, ast.Expr) and any(calls_in(statement, "backward"))


def _trained_here(module: Module, place: CodePlace) -> bool:
    """Whether the loss of this function is differentiated: here, or in a function that calls it."""
    if flow_of(module, place.function).of("backward"):
        return True
    name = place.function.name
    return any(
        flow_of(module, other.function).of("backward") for _, other in module.calls.get(name, ()) if not other.silent
    )


def _float16(repository: Repository) -> list[Module]:
    """The files that train a float16 model, looked for once."""
    if "float16" not in repository.kept:
        repository.kept["float16"] = [
            each for each in repository.modules if any(found.dtype == "float16" for found in halved_models(each))
        ]
    found: list[Module] = repository.kept["float16"]
    return found


def _beside(other: Module, module: Module) -> bool:
    """Whether a training file imports a module by the name of its file."""
    stem = module.file.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".py")
    return any(target.split(".")[-2:-1] == [stem] or target.split(".")[-1] == stem for target in other.imports.values())


def _epsilons(module: Module) -> Iterator[_Epsilon]:
    """Epsilons in divisors, clamps and logarithms, and those that are called so."""
    yield from _epsilons_in_operations(module)
    yield from _default_epsilons(module)
    if "torch" in module.imports or any(target.startswith("torch") for target in module.imports.values()):
        yield from _given_epsilons(module)


def _epsilons_in_operations(module: Module) -> Iterator[_Epsilon]:
    """What is added to a divisor or to the argument of a logarithm or root, and what a clamp keeps apart from 0."""
    for found, place in operations(module, "div", "log", "log2", "rsqrt", "sqrt"):
        inside = found.arguments[0] if found.name == "div" and found.arguments else found.operand
        if "register_buffer" not in ast.unparse(place.statement):
            for part in _summands(inside):
                yield part, place.function, "divisor" if found.name == "div" else "log"
    for found, place in operations(module, "clamp", "clamp_", "clamp_min", "clip", "maximum"):
        least = found.argument(0, "min")
        if least is not None and "register_buffer" not in ast.unparse(place.statement):
            yield least, place.function, "clamp"


def _default_epsilons(module: Module) -> Iterator[_Epsilon]:
    """Defaults of arguments that are called eps."""
    top = module.functions[0]
    for function in module.functions:
        node = function.node
        if function.silent or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for name, default in defaults_of(node.args):
            body = module.lines[node.lineno - 1 : node.end_lineno]
            if _called_eps(name) and not is_of_an_optimizer(function) and not any("np." in line for line in body):
                yield default, top, "argument"


def _given_epsilons(module: Module) -> Iterator[_Epsilon]:
    """Values that are assigned to a name like eps, or passed as one."""
    for function in module.functions:
        for target, values in function.assigned.items():
            if _called_eps(target.rsplit(".", 1)[-1]) and not function.silent:
                for _, value in values:
                    yield value, function, "argument"
    for sites in module.calls.values():
        for call, place in sites:
            for keyword in call.keywords:
                if keyword.arg is None or not _called_eps(keyword.arg) or place.silent:
                    continue
                if module.resolve(call.func).split(".")[0] not in ("numpy", "np"):
                    yield keyword.value, place.function, "argument"


def _apart(module: Module, node: ast.Constant, function: Function) -> bool:
    """Places without a gradient: optimizers, samplers, noise, buffers of a diffusion schedule."""
    line = module.lines[node.lineno - 1] if node.lineno <= len(module.lines) else ""
    if _NO_GRADIENT.search(line.lower()) or "scheduler" in module.file.lower() or "optim" in module.file.lower():
        return True
    return is_of_an_optimizer(function) or bool(_SAMPLING.search(function.name.lower()))


def _called_eps(name: str) -> bool:
    low = name.lower()
    return low in ("eps", "epsilon", "_eps", "norm_eps", "layer_norm_eps", "rms_norm_eps") or low.endswith(
        ("_eps", "_epsilon")
    )


def _summands(node: ast.expr) -> Iterator[ast.expr]:
    """The constants that are added anywhere inside an expression."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add):
            for side in (each.left, each.right):
                if isinstance(side, (ast.Constant, ast.Name, ast.Attribute)):
                    yield side
