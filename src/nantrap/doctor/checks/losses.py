"""Checks of losses that are written by hand (NT878-NT880), and what they share with other checks of losses.

An exponential without its largest exponent taken away, a division by a running mean, normalisation on both sides.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.mathematics import in_model
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.configuration.setting import number
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import (
    dotted,
    has_epsilon,
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
from nantrap.doctor.source.module import CodePlace, Function, Module

_BOUNDED: Final = re.compile(
    r"max|clamp|clip|softmax|normali|cos(?!t)|sim$|similar|sigmoid|tanh|log(?!its?)|dist|diff|delta|arange|freq|ratio|decay|"
    r"var|sigma|scale|rand|noise|beta|time|step"
)
"""Names of what has a limit, is a logarithm, or is a setting."""
_SCORES: Final = re.compile(
    r"logits?$|scores?$|energy|energies|attn|^z\w?$|out(put)?s?$|affinit|cost$|^(m|x|h|q)$|mat(rix)?$"
)
_TEMPERATURE: Final = re.compile(r"temp|^tau$|^t$|^t_?[st]$|^eps(ilon)?$|^reg$")
_PRODUCTS: Final = ("matmul", "mm", "bmm", "einsum", "mv")
_LARGEST: Final = 88.7
"""The logarithm of the largest number of float32."""
_VANISHES: Final = 103.3
"""The exponential of a smaller negative number is 0 in float32."""
_SMALL: Final = 0.01
"""A temperature at which a cost of 1 is enough for that."""
_EMBEDDING: Final = re.compile(r"proj|embed|feat|online|^[zqpkh]\d?$|rep|anchor|view|byol|predictor")


@source_check("exp_overflows", "medium", "take the largest exponent away first, or use logsumexp or log_softmax")
def exp_overflows(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The exponential of scores that nothing keeps below 88, or that is 0 for a whole row by which is divided."""
    for found, place in operations(module, "exp", "exp_"):
        function, line = place.function, found.node.lineno
        sinkhorn = "sinkhorn" in function.title
        if _in_lambda(found.node, place) or not (sinkhorn or in_model(function)):
            continue  # what a lambda is given is not seen
        given = _origin(function, found.operand, line)
        quotient = is_operation(function, given, "div")
        if quotient is not None and quotient.arguments and _sharpens(function, quotient.arguments[0]):
            scores = _origin(function, quotient.operand, line)
            if _is_negative(quotient.operand):
                yield from _vanishing_rows(module, found.node, place, quotient.arguments[0])
                continue
            if is_operation(function, scores, "cosine_similarity", *_PRODUCTS) or isinstance(scores, ast.BinOp):
                yield from _similarities(repository, found.node, function, scores, quotient.arguments[0])
        names = names_in(given) | names_in(found.operand)
        made = [function.latest(name, line) for each in ast.walk(given) if (name := dotted(each))]
        names |= {name for value in made if value is not None for name in names_in(value)}
        if any(map(_BOUNDED.search, names)) or _is_negative(given) or _is_negative(found.operand):
            continue
        divided = _divided_by(function, given) or _divided_by(function, found.operand)
        if sinkhorn or (divided and any(map(_SCORES.search, names))):
            words = f"{shown(found.node)} is Inf above 88.7 in float32 and above 11.1 in float16"
            yield Sighting.of(found.node, words)


def _similarities(
    repository: Repository, call: ast.expr, function: Function, scores: ast.expr, temperature: ast.expr
) -> Iterator[Sighting]:
    """The exponential of products over a temperature.

    Products of unit vectors are at most 1, so that the temperature alone decides. Products of vectors that nothing
    normalises have no limit; where another place of the project normalises, these may be unit vectors too.
    """
    sides = _factors(function, scores)
    cosine = is_operation(function, scores, "cosine_similarity") is not None
    unit = cosine or all(_is_unit(function, side, call.lineno) for side in sides)
    value = number(function.value(temperature)) or 0.0
    if not sides or (unit and not 0 < value * _LARGEST < 1):
        return
    elsewhere = any("normalize" in each.calls or "cosine_similarity" in each.calls for each in repository.modules)
    words = f": nothing here normalises the vectors, and above {_LARGEST} it is Inf in float32"
    if unit:
        words = f" reaches exp({1 / value:.0f}) for a similarity of 1, which is Inf in float32"
    yield Sighting.of(
        call,
        shown(call) + words,
        risk="low" if elsewhere and not unit else "medium",
        fix="use F.cross_entropy or logsumexp of similarity / temperature, and normalise the vectors",
    )


def _factors(function: Function, node: ast.expr) -> list[ast.expr]:
    """The two sides of a product of matrices, or of rows: `a @ b`, `torch.mm(a, b)`, `(a * b).sum(-1)`."""
    found = operation(function, node)
    if found is None or found.name == "einsum":
        return found.arguments[:2] if found is not None else []
    if found.name == "sum":
        return _factors(function, found.operand) if is_operation(function, found.operand, "mul") else []
    if isinstance(node, ast.BinOp) and found.name not in ("matmul", "mul"):
        return []
    return [found.operand, *found.arguments[:1]]


def _is_unit(function: Function, node: ast.expr, line: int) -> bool:
    """Whether the rows of a tensor are seen to have length 1: `F.normalize(x)`, `x / x.norm()`."""
    while isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H"):
        node = node.value
    node = peeled(function, node)
    made = function.given(node, line) or node
    if any(isinstance(each, ast.Call) and "normalize" in name_of(each.func).lower() for each in ast.walk(made)):
        return True
    quotient = is_operation(function, made, "div")
    divisors = quotient.arguments if quotient is not None else []
    return any("norm" in name for each in (node, *divisors) for name in names_in(each))


def _vanishing_rows(module: Module, call: ast.expr, place: CodePlace, temperature: ast.expr) -> Iterator[Sighting]:
    """`exp(-cost / eps)` by whose rows the function divides: 0 for every entry of a row gives Inf or 0/0."""
    statement, function = place.statement, place.function
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    own = [division for division, at in operations(module, "div") if at.function is function]
    divisors = [each for division in own for each in division.arguments if not has_epsilon(function, each)]
    if name and any(name in used_in(each) for each in divisors):
        small = 0 < (number(function.value(temperature)) or 0) <= _SMALL
        words = f"is 0 in float32 where the quotient is above {_VANISHES}, and a row of zeros divides by 0"
        yield Sighting.of(
            call,
            f"{shown(call)} {words}",
            risk="medium" if small else "low",
            fix="compute with logarithms (logsumexp): nantrap.ops.sinkhorn",
        )


@source_check("division_by_running_mean", "medium", "")
def division_by_running_mean(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss divides by an average that the forward pass keeps, and that can be zero."""
    for found, place in operations(module, "div"):
        function, line = place.function, found.node.lineno
        divisors = [_origin(function, each, line) for each in found.arguments]
        if not in_model(function) or any(has_epsilon(function, each) for each in (*divisors, *found.arguments)):
            continue
        names = sorted({name for each in divisors for name in used_in(each)})
        kept = next((name for name in names if _is_running(function, name)), None)
        given = function.latest(kept, line) if kept is not None else None
        if kept is not None and (given is None or not has_epsilon(function, given)):
            words = f"{kept} is a running mean: where it reaches 0 the quotient is Inf, and a NaN in it stays for ever"
            fix = f"keep it above zero ({kept}.clamp(min=1e-8) for a tensor), and leave non-finite batches out of it"
            yield Sighting.of(found.node, words, fix=fix)


@source_check(
    "normalized_both_sides",
    "medium",
    "leave the values as they are and clip the gradients, or predict a target of unit variance",
)
def normalized_both_sides(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Prediction and target are normalised before a squared error: the loss no longer sees their size."""
    for call, place in module.sites("mse_loss", "MSELoss", "mse", "smooth_l1_loss", "l1_loss"):
        function = place.function
        sides = [_origin(function, side, call.lineno) for side in call.args[:2]]
        if len(sides) == 2 and all(is_operation(function, side, "normalize") for side in sides):
            names = set().union(*(names_in(each) for each in (*sides, *call.args[:2])))
            words = "both sides are normalised: the loss does not see their size, so it no longer trains the scale"
            yield Sighting.of(call, words, risk="low" if any(map(_EMBEDDING.search, names)) else None)


def _origin(function: Function, node: ast.expr, line: int, depth: int = 0) -> ast.expr:
    """What a name was assigned before a line, a few steps back; views are looked through."""
    node = peeled(function, node)
    value = function.given(node, line) if depth < 3 else None
    if value is None or dotted(node) in used_in(value):
        return node
    return _origin(function, value, getattr(value, "lineno", line), depth + 1)


def _is_negative(node: ast.expr) -> bool:
    """`-x`, `-0.5 * x`, `-x / t`."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        node = node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return name_of(node.func) == "neg"
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _in_lambda(call: ast.expr, place: CodePlace) -> bool:
    return any(isinstance(each, ast.Lambda) and call in ast.walk(each) for each in ast.walk(place.statement))


def _sharpens(function: Function, divisor: ast.expr) -> bool:
    """Whether a divisor is a temperature by its name, or a number that makes exponents larger."""
    return any(map(_TEMPERATURE.search, names_in(divisor))) or 0 < (number(function.value(divisor)) or 0) < 1


def _divided_by(function: Function, node: ast.expr) -> bool:
    """Whether something is divided by a temperature, or is a bare product of matrices."""
    found = operation(function, node)
    if found is None or found.name != "div" or not found.arguments:
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    return any(map(_TEMPERATURE.search, names_in(found.arguments[0])))


def _is_running(function: Function, name: str) -> bool:
    """Whether a name is an average that training keeps: it is given `m * old + (1 - m) * new` outside a constructor.

    An attribute may be kept by any function of the file that calls it the same, `self.mean` by the same class alone;
    another name by the same function.
    """
    module = function.module
    for each in module.functions if "." in name else [function]:
        own = each.owner is function.owner or not name.startswith("self.")
        values = each.assigned.get(name, ()) if own and each.name != "__init__" else ()
        if any(_averages(module, value, name) for _, value in values):
            return True
    written = [site for called in ("lerp_", "mul_") for site in module.calls.get(called, ())]
    return "." in name and any(
        dotted(receiver_of(call, "lerp_", "mul_") or call).removesuffix(".data") == name
        for call, place in written
        if place.function.owner is function.owner
    )


def _averages(module: Module, value: ast.expr, name: str) -> bool:
    """`m * name + (1 - m) * new`: two shares that add up to 1, as far as they are known."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    factors = [*_multiplied(value.left), *_multiplied(value.right)]
    numbers = [share for each in factors if (share := number(module.value(each))) is not None]
    shares = abs(sum(numbers) - 1) < 1e-9 if len(numbers) == 2 else any(_is_rest(module, each) for each in factors)
    return shares and name in used_in(value)


def _multiplied(node: ast.expr) -> list[ast.expr]:
    """The factors of a product; of a quotient, those of what is divided."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Mult, ast.Div)):
        return [node]
    return [*_multiplied(node.left), *(_multiplied(node.right) if isinstance(node.op, ast.Mult) else ())]


def _is_rest(module: Module, node: ast.expr) -> bool:
    """`1 - momentum`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and module.value(node.left) == 1
