"""The terms of a loss that the program adds up in a statement of its own, `loss = ce + 0.1 * kl`, or by a function.

Read after a failure, from the variables of the functions that are running and from their source. They count only if
the graph of the loss that failed is the sum of just these: neither the variables of a later batch nor a branch that
was not taken are shown as terms.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from nantrap.locate.twoline.caller import names_in, near_callers
from nantrap.locate.twoline.rerun import statements_before
from nantrap.locate.twoline.rewriting import NotRepeatable

_MOST_FRAMES = 4
_MOST_TERMS = 32
_MOST_WAYS = 16
_SUMS = frozenset(("AddBackward0", "SubBackward0"))
_SCALES = frozenset(("MulBackward0", "DivBackward0", "NegBackward0"))


class _Term(NamedTuple):
    """One part of a sum: its text, its value, and its node in the graph; a number has none."""

    text: str
    value: float
    node: Any


def terms_of(loss: Tensor) -> dict[str, float]:
    """The terms of a loss by the program's names, with their values; empty where fewer than two are known."""
    top = loss.grad_fn
    if top is None:
        return {}
    for frame in near_callers(_MOST_FRAMES):
        with contextlib.suppress(NotRepeatable, Exception):
            held = names_in(frame)
            names = [name for name, value in held.items() if isinstance(value, Tensor) and _is_end(value.grad_fn, top)]
            ways = list(itertools.islice(_ways(statements_before(frame)), _MOST_WAYS)) if names else []
            for name, statements in itertools.product(names, ways):
                reader = _Reader({**frame.f_globals, **held})
                for terms in (reader.assigned_to(name, statements), reader.named_by(name, statements)):
                    if 1 < len(terms) <= _MOST_TERMS and _adds_up(held[name].grad_fn, terms):
                        return {term.text: term.value for term in terms}
    return {}


def _is_end(node: Any, top: Any) -> bool:
    """Whether a node is that of the loss, or the loss before it was divided or scaled once more."""
    for _ in range(3):
        if node is top:
            return node is not None
        below = [each for each, _ in top.next_functions if each is not None] if top.name() in _SCALES else []
        if len(below) != 1:
            return False
        top = below[0]
    return False


def _adds_up(top: Any, terms: Sequence[_Term]) -> bool:
    """Whether the graph below a node is the sum of these terms and of nothing else."""
    expected = Counter(term.node for term in terms if term.node is not None)
    found: Counter[Any] = Counter()
    waiting = [top]
    while waiting:
        node = waiting.pop()
        below = [each for each, _ in node.next_functions if each is not None]
        if node in expected and node is not top:
            found[node] += 1
        elif node.name() in _SUMS or (node.name() in _SCALES and len(below) == 1):
            waiting += below
        else:
            return False
        if found.total() > _MOST_TERMS or len(waiting) > _MOST_TERMS:
            return False
    return found == expected


class _Reader:
    """Reads the terms of a sum from its expressions. Holds the program's variables by name."""

    def __init__(self, held: Mapping[str, Any]) -> None:
        self._held = held

    def assigned_to(self, name: str, statements: Sequence[ast.stmt]) -> list[_Term]:
        """The terms of a variable, by the statements that assign it; empty if any part of it is not known."""
        found: list[_Term] = []
        for statement in statements:
            target, value = _assignment(statement)
            if target != name or value is None:
                continue
            parts = list(_parts(value))
            others = [(sign, part) for sign, part in parts if not (isinstance(part, ast.Name) and part.id == name)]
            terms = [term for sign, part in others for term in self._terms(part, sign)]
            if len(terms) < len(others):
                return []
            keeps = isinstance(statement, ast.AugAssign) or len(others) < len(parts)
            found = [*found, *terms] if keeps else terms
        return found

    def named_by(self, name: str, statements: Sequence[ast.stmt]) -> list[_Term]:
        """The losses in the last assignment of a variable, `loss = total(losses) / 4`, before they are weighed."""
        values = (value for target, value in map(_assignment, reversed(statements)) if target == name)
        named = dict.fromkeys(
            each.id for each in ast.walk(next(values, None) or ast.Pass()) if isinstance(each, ast.Name)
        )
        terms = [term for each in named for term in _term(each, self._held.get(each), 1.0)]
        terms += [term for each in named for term in self._all_of(ast.Name(each), 1.0)]
        return [term for term in terms if term.node is not None]

    def _terms(self, part: ast.expr, sign: float) -> list[_Term]:
        """One part of a sum: a variable, a variable times a number, or all parts of a container; empty if unknown."""
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") == "sum" and len(part.args) == 1:
            return self._all_of(part.args[0], sign)
        factor, inner = 1.0, part
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Mult, ast.Div)):
            left, right = self._value(part.left), self._value(part.right)
            if isinstance(left, Tensor) and _is_number(right):
                factor, inner = (right if isinstance(part.op, ast.Mult) else 1 / right), part.left
            elif isinstance(right, Tensor) and _is_number(left) and isinstance(part.op, ast.Mult):
                factor, inner = left, part.right
            else:
                return []
        return _term(ast.unparse(part), self._value(inner), sign * factor)

    def _all_of(self, container: ast.expr, sign: float) -> list[_Term]:
        """`sum(losses.values())` and `sum(losses)`: each of them, by key or position."""
        if isinstance(container, ast.Call) and isinstance(container.func, ast.Attribute):
            container = container.func.value if container.func.attr == "values" else container
        held = self._held.get(container.id) if isinstance(container, ast.Name) else None
        named: dict[str, Any] = {}
        if isinstance(held, Mapping):
            named = {str(key): value for key, value in held.items()}
        elif isinstance(held, (list, tuple)) and isinstance(container, ast.Name):
            named = {f"{container.id}[{index}]": value for index, value in enumerate(held)}
        return [term for name, value in named.items() for term in _term(name, value, sign)]

    def _value(self, node: ast.expr) -> Any:
        """What a variable, a part of one, or a number is; `None` if that is not known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._held.get(node.id)
        inner = getattr(node, "value", None)
        whole = self._held.get(inner.id) if isinstance(inner, ast.Name) else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return whole[node.slice.value] if isinstance(whole, (dict, list, tuple)) else None  # type: ignore[index]
        if isinstance(node, ast.Attribute) and whole is not None:
            return vars(whole).get(node.attr)
        return None


def _term(text: str, value: Any, factor: float) -> list[_Term]:
    """A term of a tensor of one value, or of a number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return [_Term(text, factor * float(value.detach()), value.grad_fn)]
    return [_Term(text, factor * float(value), None)] if _is_number(value) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ways(statements: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The statements that may have run, in order: with one branch or the other of each `if`, each way once."""
    if not statements:
        yield []
        return
    first, rest = statements[0], statements[1:]
    if isinstance(first, ast.If):
        begins = [way for block in (first.body, first.orelse) for way in _ways(block)]
    else:  # the last round of a loop that has ended: a window of micro-batches
        blocks = (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor)
        begins = list(_ways(first.body)) if isinstance(first, blocks) else [[first]]
    for begin, end in itertools.product(begins[:_MOST_WAYS], list(itertools.islice(_ways(rest), _MOST_WAYS))):
        yield [*begin, *end]


def _assignment(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name that a statement assigns, and the value; an addition in place assigns, too."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return (statement.target.id, statement.value) if isinstance(statement.op, ast.Add) else ("", None)
    return "", None


def _parts(node: ast.expr, sign: float = 1.0) -> Iterator[tuple[float, ast.expr]]:
    """The parts of a sum, each with its sign."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _parts(node.left, sign)
        yield from _parts(node.right, sign if isinstance(node.op, ast.Add) else -sign)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _parts(node.operand, -sign)
    else:
        yield sign, node
