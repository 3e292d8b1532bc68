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
    peeled,
    receiver_of,
    used_in,
)
from nantrap.doctor.source.module import CodePlace, Function, Module

_PROBABILITY: Final = re.compile(r"^p\d?$|^p(?!i$)_?[a-z]$|prob(?!lem)")
_LOGS: Final = ("log", "log2", "log10")
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


@configuration_check("temperature_too_low")
def temperature_too_low(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The temperature of a loss is so low that its softmax becomes a step function."""
    for each in source.all("temperature"):
        value = number(each.value)
        least = lowest_temperature(each.names)
        if value is None or not 0 <= value < least or not _is_loss_temperature(source, each, value):
            continue
        yield Sighting.at(
            each,
            "medium",
            f"{each.name} is {value:g}: logits are multiplied by {1 / value:.0f}" if value else f"{each.name} is 0",
            f"use at least {max(least, 0.04):g}",
        )


@source_check("temperature_too_low")
def loss_temperature(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss that is made with a low temperature, or has one as its default."""
    for line, name, node, function in _loss_temperatures(module):
        value = number(module.value(node, function))
        least = lowest_temperature((name,))
        if value is not None and 0 <= value < least:
            yield Sighting(
                "medium",
                line,
                value,
                f"{name} of a loss is {value:g}" + (f": logits are multiplied by {1 / value:.0f}" if value else ""),
                f"use at least {max(least, 0.04):g}",
            )


@source_check("log_of_softmax")
def log_of_softmax(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a softmax."""
    for call, place, operand in _logarithms(module):
        inner, eased = _without_floor(module, operand, place.function)
        if is_operation(module, peeled(module, inner), "softmax") is not None:
            yield _log_of(call, "softmax", "is -Inf where the softmax is 0", "use log_softmax", eased=eased)


@source_check("log_of_sigmoid")
def log_of_sigmoid(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a sigmoid."""
    for call, place, operand in _logarithms(module):
        inner, eased = _without_floor(module, operand, place.function)
        inner = _one_minus(module, inner, place.function)
        if is_operation(module, peeled(module, inner), "sigmoid") is not None:
            yield _log_of(call, "sigmoid", "is -Inf where the sigmoid is 0 or 1", "use F.logsigmoid", eased=eased)


@source_check("log_without_floor")
def log_without_floor(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The logarithm of a probability that can be exactly zero."""
    for call, place, operand in _logarithms(module):
        inner, eased = _without_floor(module, operand, place.function)
        if eased:
            continue
        inner = peeled(module, _one_minus(module, inner, place.function))
        name = dotted(inner)
        product = _unfloored_probabilities(module, inner, place.function, call.lineno)
        if product is not None:
            yield Sighting.of(
                call,
                "medium",
                f"the logarithm of {ast.unparse(product)[:50]}, which can be exactly 0: probabilities underflow",
                "add their logarithms instead: log_softmax and logsumexp",
            )
            continue
        if not name:
            continue
        value = place.function.latest(name, call.lineno)
        found = is_operation(module, peeled(module, value), "softmax", "sigmoid") if value is not None else None
        if _changed_in_place(place.function, name, call.lineno):
            continue
        if found is None:
            if _is_as_given(place.function, name, value):
                yield Sighting.of(
                    call,
                    "low",
                    f"log({name}) is -Inf where {name} is 0, and the gradient is Inf: nothing here keeps it above 0",
                    f"{name}.clamp(min=1e-6), or compute the loss from logits",
                )
            continue
        yield Sighting.of(
            call,
            "medium",
            f"log({name}), and {name} comes from a {found.name}, which can be exactly 0",
            f"use log_{found.name}" if found.name == "softmax" else "use F.logsigmoid",
        )


@source_check("softmax_over_masked_row")
def softmax_over_masked_row(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Softmax over scores whose masked positions are -Inf: a row with nothing left is NaN."""
    seen: set[int] = set()
    for call, place in module.sites("softmax", "log_softmax"):
        found = operation(module, call)
        if found is None or found.operand is None or call.lineno in seen:
            continue
        mask = _masked_by(module, found.operand, place.function, call.lineno, 0)
        if mask is None or _handles_empty_rows(module, place, call):
            continue
        risk = _mask_risk(mask, place.function, call.lineno)
        if risk is None:
            continue
        seen.add(call.lineno)
        yield Sighting(
            risk,
            call.lineno,
            ast.unparse(mask)[:80],
            f"softmax over scores masked with -inf ({ast.unparse(mask)[:50]}): a row with every position masked is NaN",
            "fill with a finite number, or use nantrap.ops.masked_softmax",
        )


@source_check("whole_batch_mask_check")
def whole_batch_mask_check(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A test for masked rows that tests the whole batch together."""
    for condition, place in module.conditions:
        if place.silent:
            continue
        tests: list[ast.expr] = [condition.test]
        for name in used_in(condition.test):
            value = place.function.latest(name, condition.lineno)
            if value is not None:
                tests.append(value)
        for test in tests:
            asked = next((each for each in ast.walk(test) if _whole_and_infinite(module, each)), None)
            if asked is not None:
                yield Sighting(
                    "medium",
                    condition.lineno,
                    ast.unparse(asked)[:80],
                    f"{ast.unparse(asked)[:60]} is true only if the whole batch is masked; one masked row is still NaN",
                    "ask per row: .all(dim=-1)",
                )
                break


def lowest_temperature(names: Sequence[str]) -> float:
    """The lowest temperature that is not reported, by the names of a setting."""
    return next((least for role, least in _LOW_BY_ROLE.items() if role in names[-1]), _LOW_TEMPERATURE)


def _log_of(call: ast.Call, name: str, without_floor: str, fix: str, *, eased: bool) -> Sighting:
    """The finding for the logarithm of a function that has a stable form.

    Args:
        call: the logarithm.
        name: of the function.
        without_floor: what happens if nothing keeps its value above zero.
        fix: the stable form.
        eased: an epsilon or a clamp does.
    """
    what = "with an epsilon: finite, but flat where it matters" if eased else without_floor
    return Sighting.of(call, "low" if eased else "medium", f"log of a {name} {what}", fix)


def _is_as_given(function: Function, name: str, value: ast.expr | None) -> bool:
    """Whether a name is what a loss written by hand was given, or what a model returned: its range is not known."""
    if name in ("self", "cls") or _POSITIVE.search(name.lower()):
        return False
    if value is None:
        owner = function.owner.name if function.owner is not None else ""
        return name in function.parameters and bool(_A_LOSS.search(f"{owner} {function.name}".lower()))
    return isinstance(value, ast.Call) and name_of(value.func).lower() in ("model", "net", "network", "decoder")


def _logarithms(module: Module) -> Iterator[tuple[ast.Call, CodePlace, ast.expr]]:
    """Every logarithm with its place and its argument; for `log1p(-p)` the argument is p."""
    for call, place in module.sites(*_LOGS):
        found = operation(module, call)
        if found is not None and found.operand is not None:
            yield call, place, found.operand
    for call, place in module.sites("log1p"):  # log1p(-p) is log(1 - p)
        found = operation(module, call)
        if found is not None and isinstance(found.operand, ast.UnaryOp) and isinstance(found.operand.op, ast.USub):
            yield call, place, found.operand.operand


def _without_floor(module: Module, node: ast.expr, function: Function) -> tuple[ast.expr, bool]:
    """The argument of a logarithm without its floor, and whether it had one."""
    eased = False
    while True:
        clamped = is_operation(module, node, "clamp", "clip", "clamp_min", "maximum", "clamp_", "max")
        if clamped is not None and clamped.operand is not None and (clamped.arguments or clamped.keywords):
            node, eased = clamped.operand, True
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = is_epsilon(module, node.left, function), is_epsilon(module, node.right, function)
            if left != right:
                node, eased = (node.right if left else node.left), True
                continue
        difference = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not eased
        if difference and has_epsilon(module, node, function):  # 1 + eps - p, 1 - p + eps
            return _one_minus(module, node, function), True
        return node, eased


def _one_minus(module: Module, node: ast.expr, function: Function) -> ast.expr:
    """p of `1 - p`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        left = node.left
        constant = module.value(left, function)
        if isinstance(constant, (int, float)) or has_epsilon(module, left, function):
            return node.right
    return node


def _unfloored_probabilities(module: Module, node: ast.expr, function: Function, line: int) -> ast.expr | None:
    """What a name or expression is, if that is a product or power of probabilities that nothing keeps above zero."""
    whole = inner = node
    for _ in range(4):
        value = function.given(inner, line)
        summed = is_operation(module, inner, "sum", "mean")
        if value is not None:
            whole = inner = peeled(module, value)
            line = getattr(value, "lineno", line)
        elif summed is not None and summed.operand is not None:
            inner = peeled(module, summed.operand)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div):
        inner = inner.left
    power = is_operation(module, inner, "pow")
    inner = power.operand if power is not None and power.operand is not None else inner
    multiplied = isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Mult, ast.Pow))
    if not multiplied or has_epsilon(module, whole, function) or not in_model(module, function):
        return None
    names = [each for each in names_in(inner) if _PROBABILITY.search(each)]
    return inner if names else None


def _changed_in_place(function: Function, name: str, line: int) -> bool:
    """Whether `p.clamp_(...)` or a similar call is above a line."""
    changes = calls_in(function.node, *_IN_PLACE)
    return any(each.lineno < line and dotted(receiver_of(each, *_IN_PLACE) or each) == name for each in changes)


def _masked_by(module: Module, node: ast.expr, function: Function, line: int, depth: int) -> ast.expr | None:
    """The mask with which scores were filled with -inf, if they were."""
    if depth > 6:
        return None
    found = operation(module, node)
    if found is not None:
        if found.name in ("masked_fill", "masked_fill_"):
            fill = found.arguments[1] if len(found.arguments) > 1 else found.keywords.get("value")
            mask = found.arguments[0] if found.arguments else found.keywords.get("mask")
            if fill is not None and mask is not None and _is_minus_inf(module, fill, function, line):
                return mask
        elif found.name == "where" and isinstance(node, ast.Call) and len(node.args) >= 3:
            if any(is_negative_infinity(module, side) for side in node.args[1:3]):
                return node.args[0]
            return None
        elif found.name in ("softmax", "log_softmax", "nan_to_num", "clamp"):
            return None
        return _masked_by(module, found.operand, function, line, depth + 1) if found.operand is not None else None
    if isinstance(node, ast.BinOp):
        for side in (node.left, node.right):
            mask = _masked_by(module, side, function, line, depth + 1)
            if mask is not None:
                return mask
        return None
    name = dotted(node)
    if not name:
        return None
    written = _written_in_place(module, function, name, line)
    if written is not None:
        return written
    # a `masked_fill` under an if is not the last assignment of every path; any of the last few counts
    for at, value in reversed([each for each in function.assigned.get(name, ()) if each[0] < line][-3:]):
        mask = _masked_by(module, value, function, at, depth + 1)
        if mask is not None:
            return mask
        if name not in _names_in_order(value):
            return None
    return None


def _is_minus_inf(module: Module, node: ast.expr, function: Function, line: int) -> bool:
    return is_negative_infinity(module, node) or is_negative_infinity(module, function.given(node, line))


def _written_in_place(module: Module, function: Function, name: str, line: int) -> ast.expr | None:
    """The mask of `scores.masked_fill_(mask, -inf)` or `scores[mask] = -inf` above a line."""
    for each in ast.walk(function.node):
        if getattr(each, "lineno", line) >= line:
            continue
        filled = receiver_of(each, "masked_fill_")
        if filled is not None and dotted(filled) == name and isinstance(each, ast.Call):
            if any(_is_minus_inf(module, fill, function, line) for fill in each.args[1:2]):
                return each.args[0]
            continue
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript):
            target = each.targets[0]
            if dotted(target.value) == name and is_negative_infinity(module, each.value):
                return target.slice
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


def _handles_empty_rows(module: Module, place: CodePlace, call: ast.Call) -> bool:
    """Whether rows without a valid position are looked after in the same function."""
    body = place.function.node
    if any(calls_in(body, "nan_to_num", "nan_to_num_")):
        return True
    for each in calls_in(body, "all", "any"):
        found = operation(module, each) if isinstance(each.func, ast.Attribute) else None
        if found is not None and (found.arguments or "dim" in found.keywords or "axis" in found.keywords):
            return True
    inside = set(map(id, ast.walk(call)))
    for each in calls_in(body, "masked_fill", "masked_fill_"):
        cleared = len(each.args) > 1 and module.value(each.args[1]) in (0, 0.0)
        if cleared and each.lineno >= call.lineno and id(each) not in inside:
            return True
    return any(each.lineno >= call.lineno for each in calls_in(body, "isnan"))


def _whole_and_infinite(module: Module, node: ast.AST) -> bool:
    """`(x == -inf).all()`, `torch.all(x == -inf)`, `torch.isneginf(x).all()`, without a dim."""
    found = is_operation(module, node, "all")
    if found is None or found.operand is None or found.arguments or found.keywords:
        return False
    inner = found.operand
    if isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], ast.Eq):
        return is_negative_infinity(module, inner.comparators[0]) or is_negative_infinity(module, inner.left)
    return is_operation(module, inner, "isneginf", "isinf") is not None


def _names_in_order(node: ast.AST) -> list[str]:
    """The names inside an expression, as written."""
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


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
        owner = function.owner.name.lower() if function.owner is not None else ""
        if _A_LOSS.search(owner):
            for name, values in function.assigned.items():
                if name.startswith("self.") and name.removeprefix("self.") in _TEMPERATURES:
                    for line, given in values:
                        if isinstance(given, ast.Constant):
                            yield line, name, given, function
        if _A_LOSS.search(f"{owner} {node.name.lower()}"):
            for argument, default in defaults_of(node.args):
                if argument in _TEMPERATURES:
                    yield default.lineno, argument, default, None
