"""Which statements a value depends on, and the values of their names before they ran.

A frame shows what its names hold now. A statement that runs again needs what they held then: `output, hidden =
model(x, hidden)` has replaced the `hidden` that it read. So a name may be taken from the frame only where no later
statement assigns it again. Otherwise the statement that assigned it runs again as well, or its value is known from the
model's recorded call or from the data loader; if neither holds, the statements cannot be run again.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nantrap.finite import any_nonfinite
from nantrap.locate.twoline.rewriting import NotRepeatable

_DEEPEST = 4
_MOST_ROUNDS = 8
_PLAIN = (int, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, nn.Module, type, types.ModuleType)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Arguments = Callable[[ast.Call], Mapping[str, Any]]
"""The values that a call was given, for each argument that is a plain name; nothing for a call that was not seen."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """The statements on which an expression depends.

    Attributes:
        statements: those to run again, in order.
        needed: all names that they and the expression read.
        cut: of these the names whose values are used as they are though a statement assigns them.
        carried: of those the names from whose own values they are assigned.
        before: values to begin with that the frame does not hold any more.
    """

    statements: list[ast.stmt]
    needed: set[str]
    cut: set[str]
    carried: set[str]
    before: dict[str, Any]


def depended_on(
    statements: Sequence[ast.stmt],
    expression: ast.expr,
    held: Mapping[str, Any],
    *,
    follows_all: bool,
    arguments: Arguments = lambda call: {},
    begun: Mapping[str, Any] | None = None,
    taken: frozenset[str] = frozenset(),
) -> Dependence:
    """The statements on which an expression depends.

    Args:
        statements: those that ran before it.
        expression: the expression.
        held: the values of the program's names now.
        follows_all: compute again what carries no graph, too.
        arguments: what recorded calls were given.
        begun: what names held before the first statement, as far as that is known otherwise.
        taken: names that are used as they are, also where they are bad.
    """
    known = begun or {}
    fixed = set(taken)
    followed: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        walk = _Walk(held, follows_all, arguments, frozenset(fixed), frozenset(followed))
        read_first = walk.back(statements, expression)
        unknown = read_first - known.keys()
        if walk.conflicts:  # a value is used as it is, and another one of the same name is needed before
            if walk.conflicts <= followed:
                raise NotRepeatable(f"two values of {min(walk.conflicts)}")
            followed |= walk.conflicts
        elif not unknown:
            before = {**walk.before, **{name: known[name] for name in read_first}}
            return Dependence(walk.kept, walk.needed, walk.cut, walk.carried, before)
        elif unknown <= fixed:
            raise NotRepeatable(f"the value that {min(unknown)} had before")
        else:
            fixed |= unknown
    raise NotRepeatable("names that are assigned again and again")


@dataclass(slots=True)
class _Walk:
    """One walk from the expression back to the first statement.

    Attributes:
        held: the values of the program's names now.
        follows_all: compute again what carries no graph, too.
        arguments: what recorded calls were given.
        fixed: names that are used as they are wherever that is possible.
        followed: names that are not used as they are.
        live: names whose values are read after this point, and come from before it.
        passed: the same of names that a statement after this point may have assigned, or not.
        assigned: names that statements after this point assign: the frame does not hold their values of before.
    """

    held: Mapping[str, Any]
    follows_all: bool
    arguments: Arguments
    fixed: frozenset[str]
    followed: frozenset[str]
    kept: list[ast.stmt] = field(default_factory=list)
    needed: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    carried: set[str] = field(default_factory=set)
    before: dict[str, Any] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)
    live: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)

    def back(self, statements: Sequence[ast.stmt], expression: ast.expr) -> set[str]:
        """Walk back through all statements; the names that are read first and whose values then are not known."""
        self.live = uses(expression).loads
        self.needed = set(self.live)
        for statement in reversed(statements):
            names = uses(statement)
            bound = names.stores & (self.live | self.passed)
            used = {name for name in bound - self.assigned if self._is_used(name)}
            if bound <= used:
                self.cut |= used
                self.carried |= used & names.loads
                self.live -= used
                self.passed -= used
            else:
                self._keep(statement, names, bound)
            self.assigned |= names.stores
        return self.live & self.assigned

    def _is_used(self, name: str) -> bool:
        """Whether the frame's value of a name is used as it is."""
        if name not in self.held or name in self.followed or not is_given(self.held[name]):
            return False
        return name in self.fixed or not (self.follows_all or is_bad(self.held[name]))

    def _keep(self, statement: ast.stmt, names: Uses, bound: set[str]) -> None:
        """The statement runs again: what it reads is needed before it."""
        self.kept.insert(0, statement)
        self.needed |= names.loads
        lost = self.assigned | names.stores
        given = {
            name: value
            for node in ast.walk(statement)
            if isinstance(node, ast.Call)
            for name, value in self.arguments(node).items()
            if name in lost and name in self.fixed - self.followed and is_given(value)
        }
        read = live_before([statement], set()) - given.keys()
        through = live_before([statement], self.live | self.passed) - live_before([statement], set())
        # assigned in one branch only: what the frame holds is what it made, or what was there before
        self.passed = through & ((bound - self.assigned) | (self.passed - self.live))
        self.live = (through - self.passed) | read
        self.conflicts |= (self.live | names.stores) & (self.cut | self.before.keys())
        self.before |= given


def bad_data(statements: Sequence[ast.stmt], held: Mapping[str, Any], *, repeats: bool) -> frozenset[str]:
    """The bad tensors that the statements took from data outside of the loop: `x = inputs[i : i + 8]`.

    What is computed from another bad tensor of the loop is none of them, nor what is made of finite values: there an
    operation may be to blame.

    Args:
        statements: those that ran before the loss.
        held: the values of the program's names now.
        repeats: the statements can be run again, and show what a function that they call computes. Where they cannot,
            `x, y = get_batch()` gives data: it reads no tensor, and what it gives has rows, or as many values as
            something that it gives has rows.
    """
    bad = {name for each in statements for name in uses(each).stores if is_bad(held.get(name))}
    found: set[str] = set()
    for each in statements:
        names, read = uses(each), list(_read_by(each, held))
        if names.loads & bad:
            continue
        reads_bad = any(map(_holds_bad, read))
        if reads_bad or not (repeats or any(map(holds_tensors, read))):
            given = {name: value for name in names.stores if isinstance(value := held.get(name), Tensor)}
            rows = {len(value) for value in given.values() if value.dim() >= 2}
            for name in given.keys() & bad:
                value = given[name]
                if value.dim() >= 2 or (value.dim() and (reads_bad or len(value) in rows)):
                    found.add(name)
    return frozenset(found)


def _read_by(statement: ast.stmt, held: Mapping[str, Any]) -> Iterator[Any]:
    """The values of the names that a statement reads, and of the attributes of these."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield held.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield getattr(held.get(node.value.id), "__dict__", {}).get(node.attr)


# ---- names that are read and assigned


class Uses(NamedTuple):
    """The names that a piece of code reads, and those that it assigns; variables of its own inner scopes left out."""

    loads: set[str]
    stores: set[str]


def uses(node: ast.AST) -> Uses:
    """The names that a piece of code reads and assigns."""
    if isinstance(node, ast.Name):
        return Uses({node.id}, set()) if isinstance(node.ctx, ast.Load) else Uses(set(), {node.id})
    found = Uses(set(), set())
    for child in ast.iter_child_nodes(node):
        inner = uses(child)
        found.loads.update(inner.loads)
        found.stores.update(inner.stores)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        found.loads.add(node.target.id)
    elif isinstance(node, _COMPREHENSIONS):
        own = set().union(*(uses(generator.target).stores for generator in node.generators))
        return Uses(found.loads - own, found.stores - own)
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        own = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)} | found.stores
        return Uses(found.loads - own, set() if isinstance(node, ast.Lambda) else {node.name})
    return found


def live_before(statements: Sequence[ast.stmt], after: set[str]) -> set[str]:
    """The names whose values from before these statements are read by them, or after them.

    A loop is taken to have run at least once.

    Args:
        statements: in order.
        after: the names that are read after them.
    """
    live = set(after)
    for each in reversed(statements):
        live = _live_before_one(each, live)
    return live


def _live_before_one(statement: ast.stmt, live: set[str]) -> set[str]:
    """The names that are live before one statement."""
    if isinstance(statement, ast.If):
        either = live_before(statement.body, live) | live_before(statement.orelse, live)
        return either | uses(statement.test).loads
    if isinstance(statement, ast.With):
        items = [uses(item) for item in statement.items]
        inside = live_before(statement.body, live).difference(*(item.stores for item in items))
        return inside.union(*(item.loads for item in items))
    if isinstance(statement, (ast.For, ast.While)):
        again = set().union(*(uses(each).loads for each in statement.body))
        inside = live_before(statement.body, live_before(statement.orelse, live) | again)
        if isinstance(statement, ast.While):
            return inside | uses(statement.test).loads
        return (inside - uses(statement.target).stores) | uses(statement.iter).loads
    if isinstance(statement, ast.Try):
        handled = [live_before(each.body, live) for each in statement.handlers]
        return live_before([*statement.body, *statement.orelse, *statement.finalbody], live).union(*handled)
    names = uses(statement)
    return (live - names.stores) | names.loads


# ---- values


def is_given(value: Any, depth: int = 0) -> bool:
    """Whether a value needs no computing again: it carries no graph."""
    if isinstance(value, Tensor):
        return value.grad_fn is None
    if isinstance(value, (*_PLAIN, float)) or callable(value):
        return True
    parts = _parts(value)
    return parts is not None and depth < _DEEPEST and all(is_given(each, depth + 1) for each in parts)


def is_bad(value: Any) -> bool:
    """Whether a number or a tensor is not finite."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return isinstance(value, Tensor) and value.is_floating_point() and any_nonfinite([value])


def _holds_bad(value: Any) -> bool:
    """Whether a value is bad, or a container with something bad in it."""
    return is_bad(value) or any(map(_holds_bad, _parts(value) or ()))


def holds_tensors(value: Any) -> bool:
    """Whether a value is a tensor, or a container with one in it."""
    return isinstance(value, Tensor) or any(map(holds_tensors, _parts(value) or ()))


def _parts(value: Any) -> Sequence[Any] | None:
    """What a dictionary, a list, a tuple or a dataclass holds; `None` for any other value."""
    if isinstance(value, Mapping):
        return tuple(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, each.name) for each in dataclasses.fields(value)]
    return value if isinstance(value, (list, tuple)) else None
