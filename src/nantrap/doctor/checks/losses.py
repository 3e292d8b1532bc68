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
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted, has_epsilon, is_operation, name_of, names_in, operation, peeled
from nantrap.doctor.source.module import Function, Module

_BOUNDED: Final = re.compile(
    r"max|clamp|clip|softmax|normali|cos(?!t)|sim$|similar|sigmoid|tanh|log(?!its?)|dist|diff|delta|arange|freq|ratio|decay|"
    r"var|sigma|scale|rand|noise|beta|time|step"
)
"""Names of what has a limit, is a logarithm, or is a setting."""
_SCORES: Final = re.compile(
    r"logits?$|scores?$|energy|energies|attn|^z\w?$|out(put)?s?$|affinit|cost$|^(m|x|h|q)$|mat(rix)?$"
)
_TEMPERATURE: Final = re.compile(r"temp|^tau$|^t$|^t_?[st]$|^eps(ilon)?$|^reg$")
_EMBEDDING: Final = re.compile(r"proj|embed|feat|online|^[zqpkh]\d?$|rep|anchor|view|byol|predictor")


@source_check("exp_overflows")
def exp_overflows(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The exponential of scores that nothing keeps below 88."""
    for call, place in module.sites("exp", "exp_"):
        found = operation(module, call)
        function = place.function
        if found is None or found.operand is None:
            continue
        sinkhorn = "sinkhorn" in _title(function)
        if not sinkhorn and not in_model(module, function):
            continue
        given = _origin(module, found.operand, function, call.lineno)
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


@source_check("division_by_running_mean")
def division_by_running_mean(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A loss divides by an average that the forward pass keeps, and that can be zero."""
    for division, place in module.divisions:
        function = place.function
        if place.silent or function.owner is None or not in_model(module, function):
            continue
        divisor = _origin(module, division.right, function, division.lineno)
        if has_epsilon(module, divisor, function) or has_epsilon(module, division.right, function):
            continue
        kept = next((name for name in _own_names(divisor) if _is_running(function.owner, name)), None)
        if kept is not None:
            yield Sighting.of(
                division,
                "medium",
                f"{kept} is a running mean: where it reaches 0 the quotient is Inf, and a NaN in it stays for ever",
                f"keep it above zero: {kept}.clamp(min=1e-8), and leave non-finite batches out of the mean",
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
    name = dotted(node)
    value = function.latest(name, line) if name and depth < 3 else None
    if value is None or name in {dotted(each) for each in ast.walk(value)}:
        return node
    return _origin(module, value, function, getattr(value, "lineno", line), depth + 1)


def _is_negative(node: ast.expr) -> bool:
    """`-x`, `-0.5 * x`, `-x / t`."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        node = node.left
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return name_of(node.func) == "neg"
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _divided_by(node: ast.expr) -> bool:
    """Whether something is divided by a temperature, or is a bare product of matrices."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return any(_TEMPERATURE.search(name) for name in names_in(node.right))
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


def _own_names(node: ast.AST) -> list[str]:
    return [name for each in ast.walk(node) if (name := dotted(each)).startswith("self.") and name.count(".") == 1]


def _is_running(owner: ast.ClassDef, name: str) -> bool:
    """Whether a class updates an attribute from its old value outside its constructor: `m * self.p + (1 - m) * new`."""
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for each in ast.walk(method):
            if isinstance(each, ast.Assign) and any(dotted(target) == name for target in each.targets):
                value = each.value
                averaged = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
                if averaged and name in {dotted(part) for part in ast.walk(value)} and "Mult" in ast.dump(value):
                    return True
            if (
                isinstance(each, ast.Call)
                and isinstance(each.func, ast.Attribute)
                and each.func.attr in ("lerp_", "mul_")
                and dotted(each.func.value).removesuffix(".data") == name
            ):
                return True
    return False
