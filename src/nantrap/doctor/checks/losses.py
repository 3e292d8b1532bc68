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
    peeled,
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


@source_check("exp_overflows")
def exp_overflows(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The exponential of scores that nothing keeps below 88, or that is 0 for a whole row by which is divided."""
    for call, place in module.sites("exp", "exp_"):
        found = operation(module, call)
        function = place.function
        if found is None or found.operand is None or _in_lambda(call, place):
            continue  # what a lambda is given is not seen
        sinkhorn = "sinkhorn" in _title(function)
        if not sinkhorn and not in_model(module, function):
            continue
        given = _origin(module, found.operand, function, call.lineno)
        if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Div) and _sharpens(module, given.right, function):
            scores = _origin(module, given.left, function, call.lineno)
            if _is_negative(given.left):
                yield from _vanishing_rows(module, call, place, given.right)
                continue
            if is_operation(module, scores, "cosine_similarity", *_PRODUCTS) or isinstance(scores, ast.BinOp):
                yield from _similarities(module, repository, call, place, scores, given.right)
        names = names_in(given) | names_in(found.operand)
        made = [function.latest(name, call.lineno) for each in ast.walk(given) if (name := dotted(each))]
        names |= {name for value in made if value is not None for name in names_in(value)}
        if any(_BOUNDED.search(name) for name in names) or _is_negative(given) or _is_negative(found.operand):
            continue
        divided = _divided_by(given) or _divided_by(found.operand)
        if not (sinkhorn or (divided and any(_SCORES.search(name) for name in names))):
            continue
        yield Sighting.of(
            call,
            "medium",
            f"{ast.unparse(call)[:60]} is Inf above 88.7 in float32 and above 11.1 in float16",
            "take the largest exponent away first, or use logsumexp or log_softmax",
        )


def _similarities(
    module: Module, repository: Repository, call: ast.Call, place: CodePlace, scores: ast.expr, temperature: ast.expr
) -> Iterator[Sighting]:
    """The exponential of products over a temperature.

    Products of unit vectors are at most 1, so that the temperature alone decides. Products of vectors that nothing
    normalises have no limit; where another place of the project normalises, these may be unit vectors too.
    """
    function = place.function
    sides = _factors(module, scores)
    if not sides:
        return
    cosine = is_operation(module, scores, "cosine_similarity") is not None
    unit = cosine or all(_is_unit(module, side, function, call.lineno) for side in sides)
    value = number(module.value(temperature, function)) or 0.0
    if unit and not 0 < value * _LARGEST < 1:
        return
    elsewhere = any("normalize" in each.calls or "cosine_similarity" in each.calls for each in repository.modules)
    text = ast.unparse(call)[:60]
    if unit:
        message = f"{text} reaches exp({1 / value:.0f}) for a similarity of 1, which is Inf in float32"
    else:
        message = f"{text}: nothing here normalises the vectors, and above {_LARGEST} it is Inf in float32"
    yield Sighting.of(
        call,
        "low" if elsewhere and not unit else "medium",
        message,
        "use F.cross_entropy or logsumexp of similarity / temperature, and normalise the vectors",
    )


def _factors(module: Module, node: ast.expr) -> list[ast.expr]:
    """The two sides of a product of matrices, or of rows: `a @ b`, `torch.mm(a, b)`, `(a * b).sum(-1)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.MatMult, ast.Mult)):
        return [node.left, node.right]
    found = operation(module, node)
    if found is None or found.operand is None:
        return []
    if found.name == "einsum":
        return found.arguments[:2]
    if found.name == "sum":
        inner = found.operand
        return _factors(module, inner) if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult) else []
    return [found.operand, *found.arguments[:1]]


def _is_unit(module: Module, node: ast.expr, function: Function, line: int) -> bool:
    """Whether the rows of a tensor are seen to have length 1: `F.normalize(x)`, `x / x.norm()`."""
    while isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H"):
        node = node.value
    node = peeled(module, node)
    made = function.given(node, line) or node
    if any(isinstance(each, ast.Call) and "normalize" in name_of(each.func).lower() for each in ast.walk(made)):
        return True
    divided = isinstance(made, ast.BinOp) and isinstance(made.op, ast.Div)
    names = names_in(node) | (names_in(made.right) if isinstance(made, ast.BinOp) and divided else set())
    return any("norm" in name for name in names)


def _vanishing_rows(module: Module, call: ast.Call, place: CodePlace, temperature: ast.expr) -> Iterator[Sighting]:
    """`exp(-cost / eps)` by whose rows the function divides: 0 for every entry of a row gives Inf or 0/0."""
    statement, function = place.statement, place.function
    name = dotted(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    if not name:
        return
    divides = any(
        at.function is function and name in used_in(division.right)
        for division, at in module.divisions
        if not has_epsilon(module, division.right, function)
    )
    if not divides:
        return
    small = 0 < (number(module.value(temperature, function)) or 0) <= _SMALL
    yield Sighting.of(
        call,
        "medium" if small else "low",
        f"{ast.unparse(call)[:60]} is 0 in float32 where the quotient is above {_VANISHES}, "
        "and a row of zeros divides by 0",
        "compute with logarithms (logsumexp): nantrap.ops.sinkhorn",
    )


@source_check("division_by_running_mean")
def division_by_running_mean(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss divides by an average that the forward pass keeps, and that can be zero."""
    for division, place in module.divisions:
        function = place.function
        if place.silent or not in_model(module, function):
            continue
        divisor = _origin(module, division.right, function, division.lineno)
        if has_epsilon(module, divisor, function) or has_epsilon(module, division.right, function):
            continue
        kept = next((name for name in sorted(used_in(divisor)) if _is_running(module, function, name)), None)
        given = function.latest(kept, division.lineno) if kept is not None else None
        if given is not None and has_epsilon(module, given, function):
            continue
        if kept is not None:
            yield Sighting.of(
                division,
                "medium",
                f"{kept} is a running mean: where it reaches 0 the quotient is Inf, and a NaN in it stays for ever",
                f"keep it above zero ({kept}.clamp(min=1e-8) for a tensor), and leave non-finite batches out of it",
            )


@source_check("normalized_both_sides")
def normalized_both_sides(module: Module, repository: Repository) -> Iterator[Sighting]:
    """Prediction and target are normalised before a squared error: the loss no longer sees their size."""
    for call, place in module.sites("mse_loss", "MSELoss", "mse", "smooth_l1_loss", "l1_loss"):
        if len(call.args) < 2:
            continue
        sides = [_origin(module, side, place.function, call.lineno) for side in call.args[:2]]
        if not all(is_operation(module, side, "normalize") for side in sides):
            continue
        names = set().union(*(names_in(each) for each in (*sides, *call.args[:2])))
        embeddings = any(_EMBEDDING.search(name) for name in names)
        yield Sighting.of(
            call,
            "low" if embeddings else "medium",
            "both sides are normalised: the loss does not see their size, so it no longer trains the scale",
            "leave the values as they are and clip the gradients, or predict a target of unit variance",
        )


def _title(function: Function) -> str:
    owner = function.owner.name if function.owner is not None else ""
    return f"{owner} {function.name}".lower()


def _origin(module: Module, node: ast.expr, function: Function, line: int, depth: int = 0) -> ast.expr:
    """What a name was assigned before a line, a few steps back; views are looked through."""
    node = peeled(module, node)
    value = function.given(node, line) if depth < 3 else None
    if value is None or dotted(node) in used_in(value):
        return node
    return _origin(module, value, function, getattr(value, "lineno", line), depth + 1)


def _is_negative(node: ast.expr) -> bool:
    """`-x`, `-0.5 * x`, `-x / t`."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        node = node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return name_of(node.func) == "neg"
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _in_lambda(call: ast.Call, place: CodePlace) -> bool:
    return any(isinstance(each, ast.Lambda) and call in ast.walk(each) for each in ast.walk(place.statement))


def _is_temperature(node: ast.expr) -> bool:
    return any(_TEMPERATURE.search(name) for name in names_in(node))


def _sharpens(module: Module, divisor: ast.expr, function: Function) -> bool:
    """Whether a divisor is a temperature by its name, or a number that makes exponents larger."""
    return _is_temperature(divisor) or 0 < (number(module.value(divisor, function)) or 0) < 1


def _divided_by(node: ast.expr) -> bool:
    """Whether something is divided by a temperature, or is a bare product of matrices."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_temperature(node.right)
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _is_running(module: Module, function: Function, name: str) -> bool:
    """Whether a name is an average that training keeps: it is given `m * old + (1 - m) * new` outside a constructor.

    An attribute may be kept by any function of the file that calls it the same, `self.mean` by the same class alone;
    another name by the same function.
    """
    for each in module.functions:
        if each.name == "__init__" or ("." not in name and each is not function):
            continue
        if name.startswith("self.") and each.owner is not function.owner:
            continue
        if any(_averages(module, value, name) for _, value in each.assigned.get(name, ())):
            return True
    return any(
        isinstance(call.func, ast.Attribute)
        and dotted(call.func.value).removesuffix(".data") == name
        and "." in name
        and place.function.owner is function.owner
        for called in ("lerp_", "mul_")
        for call, place in module.calls.get(called, ())
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
