"""Checks of softmax and sigmoid (NT818, NT858-NT860, NT864, NT865).

Temperatures that are too low, logarithms of zero, masks that cover a whole row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from nantrap.doctor.checks.mathematics import in_model
from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.setting import Setting, SettingSource, number
from nantrap.doctor.report import Risk
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import (
    calls_in,
    defaults_of,
    dotted,
    has_epsilon,
    is_epsilon,
    is_negative_infinity,
    is_operation,
    name_of,
    names_in,
    operation,
    operations,
    peeled,
    receiver_of,
    shown,
    used_in,
)
from nantrap.doctor.source.module import Function, Module

_PROBABILITY: Final = re.compile(r"^p\d?$|^p(?!i$)_?[a-z]$|prob(?!lem)")
_FLOORS: Final = frozenset({"clamp", "clip", "clamp_min", "maximum", "clamp_", "max"})
_CAUSAL: Final = re.compile(r"causal|tril|triu|future|subsequent|look_?ahead|autoregressive|window|^bias$")
_PADDING: Final = re.compile(
    r"pad|attention_mask|valid|length|lens|invalid|ignore|key_mask|src_mask|empty|missing|absent"
)
_LOW_TEMPERATURE: Final = 0.02
_LOW_BY_ROLE: Final = {"student": 0.05, "teacher": 0.04}
_TEMPERATURES: Final = frozenset(
    ["temperature", "temp", "tau", "student_temp", "teacher_temp", "student_temperature", "teacher_temperature"]
)
_A_LOSS: Final = re.compile(r"loss|nce|contrast|distill|criterion")
_IN_PLACE: Final = ("clamp_", "clip_", "add_", "clamp_min_", "clamp_max_")
_POSITIVE: Final = re.compile(r"sigma|std|var|scale|det|norm|count|len|num|size|temp|beta|alpha|weight|eps|prior")
"""Names of what a program keeps above zero by what it is."""
_GENERATION: Final = frozenset([
    "top_p", "top_k", "max_new_tokens", "max_tokens", "do_sample", "num_beams", "repetition_penalty",
    "num_generations", "max_completion_length", "response_length", "max_gen_len", "n_samples", "beam_size",
    "stop_sequences", "min_p",
])  # fmt: skip
_LOSS_WORDS: Final = re.compile(r"student|teacher|loss|nce|contrast|distill|kd|moco|clip|simclr|dino|infonce|temi")


@configuration_check("temperature_too_low", "medium", "")
def temperature_too_low(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The temperature of a loss is so low that its softmax becomes a step function."""
    for each in source.all("temperature"):
        value, least = number(each.value), lowest_temperature(each.names)
        if value is not None and 0 <= value < least and _is_loss_temperature(source, each, value):
            words = f"{value:g}: logits are multiplied by {1 / value:.0f}" if value else "0"
            yield Sighting.at(each, f"{each.name} is {words}", fix=f"use at least {max(least, 0.04):g}")


@source_check("temperature_too_low", "medium", "")
def loss_temperature(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss that is made with a low temperature, or has one as its default."""
    for line, name, node, function in _loss_temperatures(module):
        value, least = number(module.value(node, function)), lowest_temperature((name,))
        if value is not None and 0 <= value < least:
            words = f"{value:g}" + (f": logits are multiplied by {1 / value:.0f}" if value else "")
            yield Sighting(line, value, f"{name} of a loss is {words}", fix=f"use at least {max(least, 0.04):g}")


@source_check("log_of_softmax", "medium", "use log_softmax")
def log_of_softmax(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a softmax."""
    yield from _log_of(module, "softmax", "is -Inf where the softmax is 0")


@source_check("log_of_sigmoid", "medium", "use F.logsigmoid")
def log_of_sigmoid(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a sigmoid."""
    yield from _log_of(module, "sigmoid", "is -Inf where the sigmoid is 0 or 1")


@source_check("log_without_floor", "medium", "")
def log_without_floor(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a probability that can be exactly zero."""
    for call, function, operand in _logarithms(module):
        inner, eased = _without_floor(function, operand)
        inner = peeled(function, _one_minus(function, inner))
        product = None if eased else _unfloored_probabilities(function, inner, call.lineno)
        name = "" if eased else dotted(inner)
        if product is not None:
            words = f"the logarithm of {shown(product, 50)}, which can be exactly 0: probabilities underflow"
            yield Sighting.of(call, words, fix="add their logarithms instead: log_softmax and logsumexp")
        elif name and not _changed_in_place(function, name, call.lineno):
            value = function.latest(name, call.lineno)
            found = is_operation(function, value and peeled(function, value), "softmax", "sigmoid")
            if found is not None:
                words = f"log({name}), and {name} comes from a {found.name}, which can be exactly 0"
                fix = "use log_softmax" if found.name == "softmax" else "use F.logsigmoid"
                yield Sighting.of(call, words, fix=fix)
            elif _is_as_given(function, name, value):
                words = f"log({name}) is -Inf where {name} is 0, and the gradient is Inf: nothing here keeps it above 0"
                fix = f"{name}.clamp(min=1e-6), or compute the loss from logits"
                yield Sighting.of(call, words, risk="low", fix=fix)


@source_check("softmax_over_masked_row", "medium", "fill with a finite number, or use nantrap.ops.masked_softmax")
def softmax_over_masked_row(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Softmax over scores whose masked positions are -Inf: a row with nothing left is NaN."""
    seen: set[int] = set()
    for found, place in operations(module, "softmax", "log_softmax"):
        line, function = found.node.lineno, place.function
        mask = _masked_by(function, found.operand, line) if line not in seen else None
        risk = _mask_risk(mask, function, line) if mask is not None else None
        if mask is not None and risk is not None and not _handles_empty_rows(function, found.node):
            seen.add(line)
            words = f"softmax over scores masked with -inf ({shown(mask)}): a row with every position masked is NaN"
            yield Sighting(line, shown(mask, 80), words, risk)


@source_check("whole_batch_mask_check", "medium", "ask per row: .all(dim=-1)")
def whole_batch_mask_check(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A test for masked rows that tests the whole batch together."""
    for condition, place in module.conditions:
        function = place.function
        tests = [condition.test, *(function.latest(name, condition.lineno) for name in used_in(condition.test))]
        nodes = [each for test in tests if test is not None and not place.silent for each in ast.walk(test)]
        asked = next((each for each in nodes if _whole_and_infinite(function, each)), None)
        if asked is not None:
            words = f"{shown(asked)} is true only if the whole batch is masked; one masked row is still NaN"
            yield Sighting(condition.lineno, shown(asked, 80), words)


def lowest_temperature(names: Sequence[str]) -> float:
    """The lowest temperature that is not reported, by the names of a setting."""
    return next((least for role, least in _LOW_BY_ROLE.items() if role in names[-1]), _LOW_TEMPERATURE)


def _log_of(module: Module, name: str, without_floor: str) -> Iterator[Sighting]:
    """The logarithms of a function that has a stable form.

    Args:
        module: the file.
        name: of the function.
        without_floor: what happens if nothing keeps its value above zero.
    """
    for call, function, operand in _logarithms(module):
        inner, eased = _without_floor(function, operand)
        inner = _one_minus(function, inner) if name == "sigmoid" else inner
        if is_operation(function, peeled(function, inner), name) is not None:
            words = "with an epsilon: finite, but flat where it matters" if eased else without_floor
            yield Sighting.of(call, f"log of a {name} {words}", risk="low" if eased else None)


def _is_as_given(function: Function, name: str, value: ast.expr | None) -> bool:
    """Whether a name is what a loss written by hand was given, or what a model returned: its range is not known."""
    if name in ("self", "cls") or _POSITIVE.search(name.lower()):
        return False
    if value is None:
        return name in function.parameters and bool(_A_LOSS.search(function.title))
    return isinstance(value, ast.Call) and name_of(value.func).lower() in ("model", "net", "network", "decoder")


def _logarithms(module: Module) -> Iterator[tuple[ast.expr, Function, ast.expr]]:
    """Every logarithm with its function and its argument; for `log1p(-p)`, which is log(1 - p), the argument is p."""
    for found, place in operations(module, "log", "log2", "log10", "log1p"):
        operand = found.operand
        if found.name == "log1p":
            if not isinstance(operand, ast.UnaryOp) or not isinstance(operand.op, ast.USub):
                continue
            operand = operand.operand
        yield found.node, place.function, operand


def _without_floor(function: Function, node: ast.expr) -> tuple[ast.expr, bool]:
    """The argument of a logarithm without its floor, and whether it had one."""
    eased = False
    while True:
        found = operation(function, node)
        if found is None:
            return node, eased
        if found.name == "add":
            sides = [side for side in (found.operand, *found.arguments) if not is_epsilon(function, side)]
            if len(sides) != 1:
                return node, eased
            node = sides[0]
        elif found.name == "sub" and not eased and has_epsilon(function, node):  # 1 + eps - p, 1 - p + eps
            return _one_minus(function, node), True
        elif found.name in _FLOORS and (found.arguments or found.keywords):
            node = found.operand
        else:
            return node, eased
        eased = True


def _one_minus(function: Function, node: ast.expr) -> ast.expr:
    """p of `1 - p`."""
    found = is_operation(function, node, "sub")
    if found is None or not found.arguments:
        return node
    known = isinstance(function.value(found.operand), (int, float)) or has_epsilon(function, found.operand)
    return found.arguments[0] if known else node


def _unfloored_probabilities(function: Function, node: ast.expr, line: int) -> ast.expr | None:
    """What a name or expression is, if that is a product or power of probabilities that nothing keeps above zero."""
    whole = inner = node
    for _ in range(4):
        value = function.given(inner, line)
        summed = is_operation(function, inner, "sum", "mean")
        if value is not None:
            whole = inner = peeled(function, value)
            line = getattr(value, "lineno", line)
        elif summed is not None:
            inner = peeled(function, summed.operand)
    if (quotient := is_operation(function, inner, "div")) is not None:
        inner = quotient.operand
    power = is_operation(function, inner, "pow")
    if power is not None and isinstance(power.node, ast.Call):
        inner = power.operand
    if is_operation(function, inner, "mul", "pow") is None or has_epsilon(function, whole) or not in_model(function):
        return None
    return inner if any(_PROBABILITY.search(each) for each in names_in(inner)) else None


def _changed_in_place(function: Function, name: str, line: int) -> bool:
    """Whether `p.clamp_(...)` or a similar call is above a line."""
    changes = calls_in(function.node, *_IN_PLACE)
    return any(each.lineno < line and dotted(receiver_of(each, *_IN_PLACE) or each) == name for each in changes)


def _masked_by(function: Function, node: ast.expr, line: int, depth: int = 0) -> ast.expr | None:
    """The mask with which scores were filled with -inf, if they were."""
    found = operation(function, node)
    if depth > 6:
        return None
    if found is not None:
        if found.name in ("masked_fill", "masked_fill_"):
            mask = found.argument(0, "mask")
            if mask is not None and _is_minus_inf(function, found.argument(1, "value"), line):
                return mask
        elif found.name == "where" and isinstance(node, ast.Call) and len(node.args) >= 3:
            return node.args[0] if any(is_negative_infinity(function, side) for side in node.args[1:3]) else None
        elif found.name in ("softmax", "log_softmax", "nan_to_num", "clamp"):
            return None
        sides = [found.operand, *(found.arguments if isinstance(node, ast.BinOp) else ())]
        return next((m for s in sides if (m := _masked_by(function, s, line, depth + 1)) is not None), None)
    name = dotted(node)
    if not name:
        return None
    written = _written_in_place(function, name, line)
    if written is not None:
        return written
    # a `masked_fill` under an if is not the last assignment of every path; any of the last few counts
    for at, value in reversed([each for each in function.assigned.get(name, ()) if each[0] < line][-3:]):
        mask = _masked_by(function, value, at, depth + 1)
        if mask is not None or name not in used_in(value):
            return mask
    return None


def _is_minus_inf(function: Function, node: ast.expr | None, line: int) -> bool:
    return is_negative_infinity(function, node) or is_negative_infinity(function, function.given(node, line))


def _written_in_place(function: Function, name: str, line: int) -> ast.expr | None:
    """The mask of `scores.masked_fill_(mask, -inf)` or `scores[mask] = -inf` above a line."""
    for each in ast.walk(function.node):
        if getattr(each, "lineno", line) >= line:
            continue
        match each:
            case ast.Call(func=ast.Attribute(value=filled, attr="masked_fill_"), args=[mask, fill, *_]):
                if dotted(filled) == name and _is_minus_inf(function, fill, line):
                    return mask
            case ast.Assign(targets=[ast.Subscript(value=filled, slice=mask), *_], value=fill):
                if dotted(filled) == name and is_negative_infinity(function, fill):
                    return mask
    return None


def _mask_risk(mask: ast.expr, function: Function, line: int) -> Risk | None:
    """How likely a mask covers a whole row, by the names it was made of; `None` for causal masks and generation."""
    names = _traced_names(mask, function, line, 0)
    if any("token" in name or name.endswith("_id") for name in names) or re.search(r"generat|sampl", function.name):
        return None
    joined = names | {function.name.lower()} if "causal" in function.name.lower() else names
    if any(_CAUSAL.search(name) for name in joined):
        return None
    if any(_PADDING.search(name) for name in names):
        return "medium"
    if any("mask" in name for name in names):
        return "low"
    return None


def _traced_names(node: ast.expr, function: Function, line: int, depth: int) -> set[str]:
    """The names in an expression and in what these names were assigned before the line."""
    names = names_in(node)
    for each in ast.walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)) and depth < 3:
            name = dotted(each)
            for at, value in function.assigned.get(name, ()) if name else ():
                if at < line:
                    names |= _traced_names(value, function, at, depth + 1)
    return names


def _handles_empty_rows(function: Function, softmax: ast.expr) -> bool:
    """Whether rows without a valid position are looked after in the same function."""
    body, line = function.node, softmax.lineno
    if any(calls_in(body, "nan_to_num", "nan_to_num_")) or any(e.lineno >= line for e in calls_in(body, "isnan")):
        return True
    for each in calls_in(body, "all", "any"):
        found = operation(function, each) if isinstance(each.func, ast.Attribute) else None
        if found is not None and found.argument(0, "dim", "axis") is not None:
            return True
    inside = set(map(id, ast.walk(softmax)))
    fills = [each for each in calls_in(body, "masked_fill", "masked_fill_") if len(each.args) > 1]
    after = [each for each in fills if each.lineno >= line and id(each) not in inside]
    return any(function.module.value(each.args[1]) == 0 for each in after)


def _whole_and_infinite(function: Function, node: ast.AST) -> bool:
    """`(x == -inf).all()`, `torch.all(x == -inf)`, `torch.isneginf(x).all()`, without a dim."""
    found = is_operation(function, node, "all")
    if found is None or found.arguments or found.keywords:
        return False
    inner = found.operand
    if isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], ast.Eq):
        return any(is_negative_infinity(function, side) for side in (inner.comparators[0], inner.left))
    return is_operation(function, inner, "isneginf", "isinf") is not None


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


def _loss_temperatures(module: Module) -> Iterator[tuple[int, str, ast.expr, Function | None]]:
    """Line, name, expression and function of every temperature that a loss is given, keeps, or has as a default."""
    for sites in list(module.calls.values()):
        for call, place in sites:
            if not place.silent and _A_LOSS.search((dotted(call.func) or name_of(call.func)).lower()):
                for keyword in call.keywords:
                    if keyword.arg in _TEMPERATURES:
                        yield keyword.value.lineno, keyword.arg, keyword.value, place.function
    for function in module.functions:
        node = function.node
        if function.silent or not isinstance(node, ast.FunctionDef):
            continue
        if function.owner is not None and _A_LOSS.search(function.owner.name.lower()):
            kept = {name: values for name, values in function.assigned.items() if name.startswith("self.")}
            for name, values in kept.items():
                for line, given in values if name.removeprefix("self.") in _TEMPERATURES else ():
                    if isinstance(given, ast.Constant):
                        yield line, name, given, function
        for argument, default in defaults_of(node.args) if _A_LOSS.search(function.title) else ():
            if argument in _TEMPERATURES:
                yield default.lineno, argument, default, None
