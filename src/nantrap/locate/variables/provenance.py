"""Where a bad value came from that a step was given: back through the variables of the functions that are running.

Rewards, advantages, a replay buffer or targets are made before the step, in lists, numbers, NumPy arrays or under
`no_grad`: no graph shows how. But the functions that made them, or that hold them, are still on the stack. From the
variable that is bad the statement is searched that assigned it last; of what that statement reads, what is bad as well
was bad before it, and so on. A statement that reads nothing bad made it. That one statement may be run again, under the
trace, if it has no side effects and gives the same values (`made_again`).
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.finite import any_nonfinite, first_nonfinite_index, tensor_stats
from nantrap.locate.failure import Failure
from nantrap.locate.location import Location
from nantrap.locate.replay.replay import registered
from nantrap.locate.replay.rng import RngState
from nantrap.locate.source import is_installed
from nantrap.locate.trace import Trace
from nantrap.locate.trace.origin import Replay, Sink, judge
from nantrap.locate.trace.storage import share_memory
from nantrap.locate.trace.tape import Tape
from nantrap.locate.twoline.caller import Frame, KeptFrame, names_in, near_callers, seen_from
from nantrap.locate.twoline.guarded import Guarded
from nantrap.locate.twoline.rewriting import NotRepeatable, body_of, compiled, guarded_tree

_MOST_BEFORE = 20_000
_MOST_FRAMES = 6
_MOST_LINKS = 12
_MOST_READ = 64
_MOST_VALUES = 4096
_DEEPEST = 4
_MOST_OBJECTS = 256
_LARGEST = 1 << 26
_FEW = 1 / 8
_PLAIN_TESTS = (
    ast.Name, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.And, ast.Or, ast.Not, ast.Load, ast.cmpop,
    ast.List, ast.Tuple,
)  # fmt: skip
_OPAQUE = (nn.Module, Optimizer, type, ModuleType, str, bytes, int, torch.device, torch.dtype)
_WRITES = frozenset(
    {"append", "extend", "add", "insert", "appendleft", "push", "copy_", "fill_", "add_", "sub_", "mul_", "div_",
     "index_copy_", "masked_fill_", "clamp_", "put"}
)  # fmt: skip
_REPLACED = 1e37
"""Larger than what a program computes by intention in float32."""
_RESULT = "__nantrap_made__"


Way = tuple[str, ...]
"""How a bad value came: its name where it was first bad, then each link in words. Empty if that is not known."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value of the program that is not finite.

    Attributes:
        path: the first bad place of it, as the program would write it: `rewards[17]`, `batch["adv"][2]`.
        described: how much of it is bad.
        share: the same as a part of all its values.
        nan: whether NaN is among it, and not Inf alone.
    """

    path: str
    described: str
    share: float
    nan: bool = True


@dataclass(frozen=True, slots=True)
class Link:
    """A variable that is bad, and the statement that assigned it last.

    Attributes:
        value: what is bad in it.
        frame: where the variable is.
        statement: what assigned it; `None` for what the function was given.
        calls: the functions of the program that the statement calls, as they are written.
        taken: what the statement reads that an earlier statement of the same loop takes from a call.
    """

    value: BadValue
    frame: Frame
    statement: ast.stmt | None = None
    calls: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()

    @property
    def is_assigned(self) -> bool:
        """Whether a statement of the program made it, and not the head of a loop that takes it from its data."""
        return self.statement is not None and not isinstance(self.statement, (ast.For, ast.With))

    @property
    def variable(self) -> str:
        """The variable of the program: `rewards` of `rewards[17]`."""
        return self.value.path.partition("[")[0]

    @property
    def place(self) -> str:
        """The file and the line of the statement; empty without one."""
        line = "" if self.statement is None else f":{self.statement.lineno}"
        return f"{os.path.basename(self.frame.f_code.co_filename)}{line}" if line else ""

    @property
    def by(self) -> str:
        """`, from reward_fn`: the functions that the statement calls."""
        return f", from {' and '.join(self.calls[:2])}" if self.calls else ""

    @property
    def words(self) -> str:
        """`rewards[17] is NaN; line 41 assigns it: rewards[step] = reward_fn(x)`."""
        said = f"{self.value.path} ({self.value.described})"
        if self.statement is None:
            return said
        text = ast.unparse(self.statement).split("\n")[0]
        text = text if len(text) <= 100 else f"{text[:97]}..."
        return f"{said}, assigned at {self.place}{self.by}: {text}{self.from_loop}"

    @property
    def from_loop(self) -> str:
        """`; reward is taken from env.step in line 38`: what the statement reads, and where the loop took it from."""
        return f"; {'; '.join(self.taken)}" if self.taken else ""


class Remade(NamedTuple):
    """What made a bad value that a step was given.

    Attributes:
        failure: the part of the step that made it, which can be run again unless that has side effects.
        replay: where it began in that part.
        way: on which a number of the program came in that no operation made: its name, and the words of each link.
        entered: that number, as a tensor.
        note: what was not as it had been when the part was run again.
    """

    failure: Failure
    replay: Replay
    way: Way = ()
    entered: Tensor | None = None
    note: str = ""


def given_bad(location: Location) -> tuple[Tensor, str] | None:
    """The tensor that was bad before the step and that no part of its state, with its name."""
    if location.constant is not None:
        return location.constant[1], location.constant[0]
    external = location.external
    if external is not None and external.kind in ("batch", "constant"):
        return external.tensor, external.name
    seen = {} if location.replay is None else location.replay.trace.externals
    given = [e for e in seen.values() if e.kind in ("batch", "constant") and e.tensor.dim() == 1]
    bad = [e for e in given if e.tensor.is_floating_point() and any_nonfinite([e.tensor])]
    return (bad[0].tensor, bad[0].name) if bad else None  # one value per sample, such as a log-probability of -Inf


def bad_in_block() -> list[Link]:
    """The way back from the first bad variable that the `with` block assigned which has just ended here."""
    frames = list(near_callers(_MOST_FRAMES))
    if not frames or is_installed(frames[0].f_code):
        return []
    inner = frames[0]
    blocks = [node for each in _body(inner) for node in ast.walk(each) if isinstance(node, ast.With)]
    ended = next((each for each in blocks if each.lineno == inner.f_lineno), None)
    if ended is None:
        return []
    last = ended.end_lineno or ended.lineno
    held = names_in(inner)
    assigned = {name for each in _statements(ended.body, held, set()) for name in _written(each)}
    with seen_from([KeptFrame(inner.f_code, last, inner.f_globals, held, ended=True), *frames[1:]]):
        return bad_variable(among=assigned)


def bad_variable(among: Set[str] | None = None) -> list[Link]:
    """The way back from the first bad variable of the program that carries no graph, where no operand has a name.

    What was computed from something bad with a graph is left out: a number that was read from the bad loss; and what
    the program writes itself (`best = math.inf`). A few values of -Inf count only if nothing else is bad:
    log-probabilities; many of them are a mask.

    Args:
        among: the variables of the innermost function in which NaN is looked for, and nothing else.
    """
    frames = list(near_callers(_MOST_FRAMES))
    for minus in (False, True) if among is None else (False,):
        for position, frame in enumerate(frames if among is None else frames[:1]):
            held, found = names_in(frame), []
            for name, value in held.items():
                if among is not None and name not in among:
                    continue
                if isinstance(value, dict):  # a number in it is a setting
                    value = {key: each for key, each in value.items() if not isinstance(each, float)}
                elif not isinstance(value, (Tensor, np.ndarray, float, list)):
                    continue
                bad = None if _has_graph(value) else first_bad(value, name, minus=minus)
                if bad is None or (minus and bad.share > _FEW) or (among is not None and not bad.nan):
                    continue
                statement = _assigned_last(frame, name, _line(frame))
                if statement is not None and (statement.end_lineno or 0) >= _line(frame):
                    continue  # the variable holds what the round before left, which may be due to its bad loss
                read = [] if statement is None else [held[each] for each in _read_by(statement, "") if each in held]
                read = [each for each in read if not isinstance(each, ModuleType)]
                made = statement is not None and (read or _calls(statement, {**frame.f_globals, **held}))
                if statement is not None and made and not any(map(_has_graph, read)):
                    found.append((statement.lineno, name))
            if found:
                return _followed(frames, position, min(found)[1], minus=minus)
    return []


def _line(frame: Frame) -> int:
    """The line that a frame has reached: what is above it was run."""
    return frame.f_lineno + (isinstance(frame, KeptFrame) and frame.ended)


def _has_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.grad_fn is not None


def trace_back(tensor: Tensor, name: str) -> list[Link]:
    """The variables through which a bad tensor came, the earliest first; empty if it is none of theirs.

    Args:
        tensor: the tensor that the step was given.
        name: what the program calls it, where that is known.
    """
    frames = list(near_callers(_MOST_FRAMES))
    start = _holder(frames, tensor, name.partition("[")[0].partition(".")[0])
    return [] if start is None else _followed(frames, *start, minus=_only_minus(tensor))


def way_here(tensor: Tensor) -> Way:
    """The name of what brought a bad tensor into the line that is running now, and the way to it in words."""
    links = trace_here(tensor)
    return (links[0].value.path, *(link.words for link in links)) if links else ()


def trace_here(tensor: Tensor) -> tuple[Link, ...]:
    """The variables through which a bad tensor came that the line reads which is running now, the earliest first.

    Where it reads no bad variable, the line itself made the value, out of numbers of its own or what a call gave. The
    links must not be kept: frames keep everything in them alive.
    """
    frames = list(near_callers(_MOST_FRAMES))
    statement = _running(frames)
    if statement is None:
        return ()
    if links := _read_by_running(frames, statement, minus=_only_minus(tensor)):
        return links
    stats = tensor_stats(tensor)
    value = BadValue("a value", stats.describe(), stats.nonfinite / max(1, stats.numel))
    known = {**frames[0].f_globals, **names_in(frames[0])}
    return (Link(value, frames[0], statement, _calls(statement, known)),)


def trace_given() -> tuple[Link, ...]:
    """The variables through which something bad came that the line reads which is running now, the earliest first."""
    frames = list(near_callers(_MOST_FRAMES))
    statement = _running(frames)
    return () if statement is None else _read_by_running(frames, statement, minus=False)


def _running(frames: list[Frame]) -> ast.stmt | None:
    """The statement that runs now in the innermost frame."""
    if not frames:
        return None
    frame = frames[0]
    held, line = names_in(frame), frame.f_lineno
    here = [each for each in _statements(_body(frame), held, set()) if each.lineno <= line <= (each.end_lineno or 0)]
    return max(here, key=lambda each: each.lineno, default=None)


def _read_by_running(frames: list[Frame], statement: ast.stmt, *, minus: bool) -> tuple[Link, ...]:
    """The way back from the first bad variable that the running statement reads; empty if it reads none."""
    held = names_in(frames[0])
    for each in _read_by(statement, ""):
        if first_bad(_resolved(held, each), each, minus=minus) is not None:
            return tuple(_followed(frames, 0, each, minus=minus))
    return ()


def _only_minus(tensor: Tensor) -> bool:
    stats = tensor_stats(tensor)
    return not stats.nan and not stats.posinf


def _followed(frames: list[Frame], position: int, variable: str, *, minus: bool) -> list[Link]:
    """The way back from a variable of one of these frames, the earliest link first."""
    links: list[Link] = []
    seen: set[tuple[int, str]] = set()
    while len(links) < _MOST_LINKS and (position, variable) not in seen:
        seen.add((position, variable))
        step = _link(frames[position], variable, minus=minus)
        if step is None:
            break
        link, earlier = step
        links.append(link)
        if earlier is not None:
            variable = earlier
        elif link.statement is None and (above := _given_by(frames, position, variable)) is not None:
            position, variable = above
        else:
            break
    while len(links) > 1 and links[-1].statement is None and links[-2].statement is None:
        links.pop()  # the same object under the name that a caller has for it
    return links[::-1]


def _holder(frames: list[Frame], tensor: Tensor, name: str) -> tuple[int, str] | None:
    """The innermost frame with a variable of this name, or with one that is or holds the tensor or a view of it."""
    for position, frame in enumerate(frames):
        held = names_in(frame)
        if name in held and first_bad(held[name], name, minus=True) is not None:
            return position, name
    for position, frame in enumerate(frames):
        held = names_in(frame)
        for each, value in sorted(held.items(), key=lambda item: item[0] == "self"):  # what an object keeps comes last
            if any(isinstance(part, Tensor) and share_memory(part, tensor) for _, part in _parts(value, each, 0)):
                return position, each
    return None


def _given_by(frames: list[Frame], position: int, variable: str) -> tuple[int, str] | None:
    """The variable of a caller that is the same object as an argument."""
    value = names_in(frames[position]).get(variable)
    for above in range(position + 1, len(frames)):
        for name, each in names_in(frames[above]).items():
            if each is value:
                return above, name
    return None


def _link(frame: Frame, variable: str, *, minus: bool) -> tuple[Link, str | None] | None:
    """A bad variable with its statement, and the variable that was bad before that; `None` if it is finite."""
    held = names_in(frame)
    bad = first_bad(_resolved(held, variable), variable, minus=minus)
    if bad is None:
        return None
    statement = _assigned_last(frame, variable, _line(frame))
    owner = variable.rpartition(".")[0]
    if statement is None and owner:  # a part of what `for data in buffer.get()` or `data = sample()` gave
        statement = _assigned_last(frame, owner, _line(frame))
    if statement is None:
        return Link(bad, frame), None
    shown: ast.stmt | None = statement
    earlier, made = None, statement
    while shown is not None:  # `x = x - x.mean()`, `x[mask] = 0`: what was it made of before?
        earlier = _bad_read(frame, held, shown, variable, minus=minus)
        if _writes_a_part(shown) and not _is_in_the_last(held, bad.path, minus=minus):
            earlier = None  # what the statement reads has another value since
        value = _value_of(shown)
        if earlier is not None or value is None or not (variable in _operands(value) or _writes_a_part(shown)):
            break
        shown = _assigned_last(frame, variable, shown.lineno, only_before=True)
    statement = shown if shown is not None and earlier is not None else made
    if statement is not made:  # the name holds what was computed of it since
        bad = dataclasses.replace(bad, path=variable, described=f"{bad.described} by now")
    reads = _read_by(statement, variable)
    taken: list[str] = []
    known = {**frame.f_globals, **held}
    if earlier is None and not _calls(statement, known):
        for each in reads:
            before = _assigned_last(frame, each, statement.lineno) if each in held else None
            for _ in range(_DEEPEST):  # `o, r = env.step(a)`, then `obs = torch.tensor(o)`
                if before is None or _calls(before, known) or len(further := _read_by(before, each)) != 1:
                    break
                each, before = further[0], _assigned_last(frame, further[0], before.lineno)
            if before is not None and (calls := _calls(before, known)) and _in_same_loop(frame, statement, before):
                taken.append(f"{each} is taken from {calls[0]} in line {before.lineno}")
    if earlier is None and _makes_the_object(held.get(variable), statement, bad.path, known):
        return Link(bad, frame), None  # not what it holds by now
    return Link(bad, frame, statement, _calls(statement, known), tuple(taken)), earlier


def _makes_the_object(value: Any, statement: ast.stmt, path: str, known: Mapping[str, Any]) -> bool:
    """Whether a statement calls the class of an object in which something is bad: `trainer = Trainer(model)`."""
    made = _value_of(statement)
    inside = "." in path and isinstance(made, ast.Call)
    return inside and isinstance(made, ast.Call) and _resolved(known, _base(made.func)) is type(value)


def _is_in_the_last(held: Mapping[str, Any], path: str, *, minus: bool) -> bool:
    """Whether what a list got last is bad, where the first bad place is in a list: `buffer.rewards[11]`."""
    owner, *keys = path.rpartition("[")[0].split("[")
    values = _resolved(held, owner)
    with contextlib.suppress(ValueError, SyntaxError):
        for key in keys:  # `buffer.lists['old']`
            values = values.get(ast.literal_eval(key[:-1])) if isinstance(values, Mapping) else None
    growing = isinstance(values, (list, deque)) and len(values) > 0
    return not growing or first_bad(values[-1], "", minus=minus) is not None


def _bad_read(frame: Frame, held: Mapping[str, Any], statement: ast.stmt, variable: str, *, minus: bool) -> str | None:
    """The first bad variable that a statement reads.

    What it reads may be made by statements of the same loop: then it holds what the last round left, which may be
    finite, and what those statements read is looked at (`delta = rewards[t] + 1`, then `adv[t] = last = delta * 2`).
    """
    direct = _read_by(statement, variable)
    # an object that is passed on may have bounds of Inf; one that is asked (`buffer.sample(n)`) gives what it holds
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    called = {_base(each.value) for each in calls if isinstance(each, ast.Attribute)}
    waiting, seen = deque(direct), {variable, *_written(statement)}
    while waiting and len(seen) < _MOST_READ:
        each = waiting.popleft()
        if each in seen:
            continue
        seen.add(each)
        before = _assigned_last(frame, each, _line(frame)) if each in held else None
        same_loop = before is not None and _in_same_loop(frame, statement, before)
        value = _resolved(held, each)
        # of an object whose own method runs, what it holds itself: a trainer keeps the history of its losses further in
        bad = first_bad(value, each, minus=minus, depth=_DEEPEST - 1 if each == "self" else 0)
        if bad is not None and (
            bad.nan or each in called or not hasattr(value, "__dict__") or isinstance(value, Tensor)
        ):
            if each in direct or before is None or not same_loop or before.lineno < statement.lineno:
                return each
        elif before is not None and same_loop:
            waiting += _read_by(before, each)
    return None


# ---- statements


def _body(frame: Frame) -> list[ast.stmt]:
    with contextlib.suppress(NotRepeatable, Exception):
        return body_of(frame.f_code)
    return []


def _assigned_last(frame: Frame, variable: str, line: int, *, only_before: bool = False) -> ast.stmt | None:
    """The statement that assigned a variable last before a line, or wrote into it.

    In a loop around the line that is the last one before it in this round, or else the last one of the round before,
    if there was one; only then one before the loop.
    """
    body, held = _body(frame), names_in(frame)
    over = _changed_by_ended_loops(body, frame.f_lineno, variable)
    found = [each for each in _statements(body, held, over) if variable in _written(each) and not _is_finite(each)]
    before = max((each.lineno for each in found if each.lineno < line), default=0)
    around = [loop for loop in _loops(body) if loop.lineno <= line <= (loop.end_lineno or 0)]
    chosen = before
    for loop in sorted(around, key=lambda loop: -loop.lineno) if not only_before else ():
        if before > loop.lineno:
            break
        inside = [each.lineno for each in found if loop.lineno < each.lineno <= (loop.end_lineno or 0)]
        if inside and not (before and _is_first_round(loop, held)):
            chosen = max(inside)
            break
    if not chosen and not only_before:
        chosen = max((each.lineno for each in found), default=0)
    return next((each for each in found if each.lineno == chosen), None)


def _loops(body: list[ast.stmt]) -> list[ast.For | ast.While]:
    return [node for each in body for node in ast.walk(each) if isinstance(node, (ast.For, ast.While))]


def _is_first_round(loop: ast.For | ast.While, held: Mapping[str, Any]) -> bool:
    """Whether a loop that counts from 0 is in its first round."""
    target = loop.target if isinstance(loop, ast.For) else None
    counter = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    value = held.get(counter.id) if isinstance(counter, ast.Name) else None
    return isinstance(value, int) and value == 0


def _changed_by_ended_loops(body: list[ast.stmt], line: int, variable: str) -> set[str]:
    """The variables that loops assign which are not around a line, and that do not tell which branch made a variable.

    They hold what the last round left. That round made the variable too, unless each round writes a part of it.
    """
    ended = [loop for loop in _loops(body) if not loop.lineno <= line <= (loop.end_lineno or 0)]
    within = [list(_statements([loop], {}, set())) for loop in ended]
    names = [{name for each in statements for name in _written(each)} for statements in within]
    in_parts = any(_writes_a_part(each) and variable in _written(each) for each in chain(*within))
    return {name for i, own in enumerate(names) for name in own if in_parts or any(name in n for n in names[i + 1 :])}


def _writes_a_part(statement: ast.stmt) -> bool:
    """Whether a statement writes into what a variable holds, and leaves the rest of it as it was."""
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Subscript) for target in statement.targets)
    return isinstance(statement, (ast.AugAssign, ast.Expr))


def _is_finite(statement: ast.stmt) -> bool:
    """Whether a statement assigns a number that is written there, and that is finite."""
    value = _value_of(statement)
    return isinstance(value, ast.Constant) and not (isinstance(value.value, float) and math.isinf(value.value))


def _outcome(test: ast.expr, held: Mapping[str, Any], over: set[str]) -> bool | None:
    """Which branch is taken, as far as plain comparisons of names tell it that still hold what they held."""
    if not all(isinstance(node, (*_PLAIN_TESTS, ast.Attribute)) for node in ast.walk(test)):
        return None
    read = [*_operands(test)]
    values = {path: _resolved(held, path) for path in read}
    plain = (isinstance(value, (str, int, float)) or (value is None and path in held) for path, value in values.items())
    if over & set(read) or not all(plain):
        return None
    with contextlib.suppress(Exception):
        code = compile(ast.Expression(_WithValues(values).visit(copy.deepcopy(test))), "<test>", "eval")
        return bool(eval(code, {"__builtins__": {}}))
    return None


class _WithValues(ast.NodeTransformer):
    """An expression with the values of its variables and attributes in their places."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def _valued(self, node: ast.Name | ast.Attribute) -> ast.expr:
        return ast.copy_location(ast.Constant(self._values[_base(node)]), node)

    visit_Name = visit_Attribute = _valued


def _statements(body: list[ast.stmt], held: Mapping[str, Any], over: set[str]) -> Iterator[ast.stmt]:
    """Every statement that contains no others, and the heads of loops; inner functions, and branches that were not
    taken, left out."""
    for statement in body:
        outcome = _outcome(statement.test, held, over) if isinstance(statement, ast.If) else None
        if isinstance(statement, ast.If) and outcome is not None:
            yield from _statements(statement.body if outcome else statement.orelse, held, over)
            continue
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        blocks = [getattr(statement, name, None) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        if any(blocks):
            if isinstance(statement, (ast.For, ast.With)):
                yield statement
            for block in blocks:
                yield from _statements(block or [], held, over)
        else:
            yield statement


def _written(statement: ast.stmt) -> set[str]:
    """The variables that a statement assigns, or writes into."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.AST] = list(statement.targets)
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For)):
        targets = [statement.target]
    elif isinstance(statement, ast.With):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    elif isinstance(statement, ast.Expr) and isinstance(call := statement.value, ast.Call):
        writes = isinstance(call.func, ast.Attribute) and call.func.attr in _WRITES
        return {_base(call.func.value)} if writes and isinstance(call.func, ast.Attribute) else set()
    else:
        return set()
    names: set[str] = set()
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        names |= {_base(part.value if isinstance(part, ast.Starred) else part) for part in parts}
    return names


def _base(node: ast.AST) -> str:
    """The variable or attribute that `x`, `x[i]`, `self.x` or `self.x[i]` is or belongs to."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        owner = _base(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def _resolved(held: Mapping[str, Any], path: str) -> Any:
    """The value of `x` or `self.x`; attributes that are computed are not asked for."""
    name, *attributes = path.split(".")
    value = held.get(name)
    for attribute in attributes:
        if isinstance(value, ModuleType):
            return None
        fields = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
        held = getattr(value, "__dict__", {})
        if isinstance(value, nn.Module):
            held = dict(chain(held.items(), value.named_parameters(recurse=False), value.named_buffers(recurse=False)))
        value = getattr(value, attribute) if attribute in fields else held.get(attribute)
    return value


def _value_of(statement: ast.stmt) -> ast.expr | None:
    """What a statement assigns."""
    if isinstance(statement, ast.For):
        return statement.iter
    if isinstance(statement, ast.With):
        return statement.items[0].context_expr
    value: ast.expr | None = getattr(statement, "value", None)
    return value


def _read_by(statement: ast.stmt, variable: str) -> list[str]:
    """The variables that the assigned value is made of, in the order in which they are written."""
    value = _value_of(statement)
    found: list[str] = [] if value is None else list(_operands(value))
    return [each for each in dict.fromkeys(found) if each != variable]


def _operands(node: ast.AST) -> Iterator[str]:
    """The variables and attributes that an expression reads; of `self.buffer.sample(n)`, `self.buffer`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _operands(node.func.value)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _operands(argument)
    elif isinstance(node, (ast.Name, ast.Attribute)) and (path := _base(node)):
        yield path
    else:
        for each in ast.iter_child_nodes(node):
            yield from _operands(each)


def _calls(statement: ast.stmt, held: Mapping[str, Any]) -> tuple[str, ...]:
    """The functions that a statement calls and that are the program's or a library's, not torch's or NumPy's."""
    value = _value_of(statement)
    found: dict[str, None] = {}
    for call in (node for node in ast.walk(value) if isinstance(node, ast.Call)) if value is not None else ():
        text = ast.unparse(call.func)
        root = held.get(_base(call.func).partition(".")[0])
        if isinstance(call.func, ast.Attribute) and (
            root is None or isinstance(root, (ModuleType, Tensor, np.ndarray))
        ):
            continue
        if isinstance(call.func, ast.Attribute) and isinstance(_resolved(held, _base(call.func.value)), Tensor):
            continue
        if isinstance(call.func, ast.Name) and call.func.id not in held:
            continue  # a builtin
        if text.rpartition(".")[2] not in _WRITES and len(text) <= 60:
            function = _resolved(held, _base(call.func))
            if isinstance(function, FunctionType) and function.__name__ != text:  # one of several, such as a reward
                code = function.__code__
                text = f"{text} ({function.__name__}, {os.path.basename(code.co_filename)}:{code.co_firstlineno})"
            found[text] = None
    return tuple(found)


def _in_same_loop(frame: Frame, one: ast.stmt, other: ast.stmt) -> bool:
    """Whether two statements are in the body of one loop that is not around the current line: its last round is over,
    and its variables are those of that round."""
    loops = _loops(_body(frame))
    first, last = min(one.lineno, other.lineno), max(one.lineno, other.lineno)
    return any(loop.lineno <= first <= last <= (loop.end_lineno or 0) for loop in loops)


# ---- values


def first_bad(
    value: Any, path: str, *, minus: bool = False, depth: int = 0, met: set[int] | None = None
) -> BadValue | None:
    """The first bad place in a value of the program.

    Args:
        value: the value.
        path: what the program calls it.
        minus: -Inf alone counts as bad; otherwise it is taken for a mask, or a value to begin with.
        depth: how many attributes lead to it.
        met: the objects that were searched. Objects may refer to each other in a circle.
    """
    if isinstance(held := getattr(value, "__dict__", None), dict) and not isinstance(value, (*_OPAQUE, Tensor)):
        met = set() if met is None else met
        if depth >= _DEEPEST or id(value) in met or len(met) >= _MOST_OBJECTS:
            return None
        met.add(id(value))
        found = [
            (each, first_bad(each, f"{path}.{name}", minus=minus, depth=depth + 1, met=met))
            for name, each in list(held.items())[:64]
        ]
        # objects hold Inf by intention (bounds, the best loss so far); a list or an array of their own is data
        kept = [bad for each, bad in found if bad and (bad.nan or not (depth or isinstance(each, float)))]
        return min(kept, key=lambda bad: bad.share, default=None)
    left = _MOST_VALUES
    # what an object keeps as a plain +Inf is a limit, or the beginning of a minimum
    is_limit = depth > 0 and not isinstance(value, (list, tuple, deque))
    for place, each in _parts(value, path, 0):
        left -= 1
        if left < 0:
            return None
        if isinstance(each, float):
            if each != each or (each == math.inf and not is_limit) or (minus and each == -math.inf):
                kind = "NaN" if each != each else "+Inf" if each > 0 else "-Inf"
                return BadValue(place, kind, 1.0, nan=each != each)
            continue
        tensor = _tensor(each)
        if tensor is None or not any_nonfinite([tensor]):
            continue
        stats = tensor_stats(tensor)
        if not stats.nan and not stats.posinf and not minus:
            continue
        index = first_nonfinite_index(tensor)
        where = f"[{', '.join(map(str, index))}]" if index else ""
        return BadValue(f"{place}{where}", stats.describe(), stats.nonfinite / max(1, stats.numel), nan=stats.nan > 0)
    return None


def _tensor(value: Any) -> Tensor | None:
    """A tensor, or an array of numbers as one."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f" or value.size > _LARGEST:
            return None
        return torch.from_numpy(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")))
    if isinstance(value, Tensor) and value.is_floating_point() and value.numel() <= _LARGEST:
        return value.detach()
    return None


def _parts(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The numbers, tensors and arrays in a value, each with its place as the program would write it."""
    if isinstance(value, (Tensor, np.ndarray, float)):
        yield path, value
    elif isinstance(value, np.floating):
        yield path, float(value)
    elif depth >= _DEEPEST or isinstance(value, _OPAQUE) or value is None:
        return
    elif isinstance(value, Mapping):
        for key, each in list(value.items())[:_MOST_VALUES]:
            yield from _parts(each, f"{path}[{key!r}]" if isinstance(key, (str, int)) else path, depth + 1)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield from _parts(getattr(value, name), f"{path}.{name}", depth + 1)
    elif isinstance(value, (list, tuple, deque)):
        for index, each in zip(range(_MOST_VALUES), value, strict=False):
            yield from _parts(each, f"{path}[{index}]", depth + 1)
    elif dataclasses.is_dataclass(value) or not callable(value):
        for name, each in list(getattr(value, "__dict__", {}).items())[:64]:
            yield from _parts(each, f"{path}.{name}", depth + 1)


# ---- the statement again


def made_again(link: Link, failed: Failure) -> Remade | None:
    """Run the statement again that made a bad value out of finite ones; `None` if it has side effects or is finite.

    What it reads may have changed since: then it gives other values, and nothing is concluded.
    """
    statement, value = link.statement, None if link.statement is None else _value_of(link.statement)
    if value is None or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    held = names_in(link.frame)
    made = _tensor(held.get(statement.targets[0].id))
    if made is None:
        return None
    assigned = ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], value), statement)
    target = statement.targets[0].id
    operands = {name: held[name] for name in _read_by(statement, "") if isinstance(held.get(name), Tensor)}
    names = {**link.frame.f_globals, **held}
    code = compiled([guarded_tree(ast.fix_missing_locations(assigned))], link.frame.f_code)

    def result(batch: Any) -> Tensor:
        guarded = Guarded(failed.root, _refuse) if failed.during == "training" else Guarded(failed.root)
        found = guarded.run(code, {**names, **batch})[_RESULT]
        if not isinstance(found, Tensor):
            raise NotRepeatable("a statement that gives no tensor")
        return found

    if target not in operands:
        return _run_again(failed, result, operands, made)
    # `x = (x - x.mean()) / x.std()`: what x was before is gone. NaN that other values give as well is not due to them
    found = [_run_again(failed, result, {**operands, target: values}, made) for values in _other_values(made)]
    if found[0] is None or any(each is None for each in found):
        return None
    note = f"what {target} held before is gone: the statement gives NaN for other finite values of its shape as well"
    return found[0]._replace(note=note)


def _other_values(made: Tensor) -> tuple[Tensor, Tensor]:
    """Two sets of finite values of the shape of a tensor, without a draw from any generator."""
    values = torch.arange(1.0, made.numel() + 1, dtype=made.dtype, device=made.device).reshape(made.shape)
    return values, values.square().flip(tuple(range(made.dim()))) - 0.5


def _run_again(failed: Failure, result: Callable[[Any], Tensor], batch: Any, made: Tensor) -> Remade | None:
    """A part of the step run again under a trace; `None` if it does not give NaN at the same places."""
    again = dataclasses.replace(
        failed,
        forward=lambda batch: result(batch).detach().amax(),
        batch=batch,
        rng=failed.rng or (failed.root_call.rng if failed.root_call is not None else RngState.capture()),
        loss=torch.full((), math.nan),
        loss_value=math.nan,
        gradients={},
        root_call=None,
        tape=None,
        evidence=None,
        during="evaluation",
    )
    with contextlib.suppress(NotRepeatable, Exception), failed.rewound():
        trace = Trace(failed.root, registered(again))
        with trace, torch.no_grad():
            found = result(batch)
        same = found.shape == made.shape and torch.equal(found.isnan(), made.isnan())
        if same:
            replay = judge(trace, [Sink("the value", "value", trace.origins_of(found))])
            return Remade(again, replay) if replay.op is not None else None
    return None


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotRepeatable("a call of the model")


# ---- the loop, traced while it ran


def made_in_loop(failed: Failure, made: Tensor | None, *, operations: bool = True) -> Remade | None:
    """What made a bad value, or how it came into the loop, where the loop ran under a trace (armed); else `None`.

    Args:
        failed: the step.
        made: the bad value: what the step was given, or its loss.
        operations: whether an operation is of interest, or only a number of the program that came in.
    """
    trace = failed.tape
    if made is None or not isinstance(trace, Trace) or not any_nonfinite([made]):
        return None
    writer = trace.writer_of(made)
    replay = judge(trace, [Sink("the value", "value", trace.origins_of(made))])
    op = replay.op
    if writer is None or (replay.origin is not None and op is None):
        return None
    capture = None if op is None else trace.captures.get(op.index)
    # Inf - Inf: what was Inf before? And what was replaced by the largest number of its dtype (nan_to_num)?
    given = [] if capture is None else [each for each in capture.inputs() if each.is_floating_point()]
    if (
        op is None
        or any_nonfinite(given)
        or any(float(each.abs().amax()) > _REPLACED for each in given if each.numel())
    ):
        before = {each.index for each in trace.behind([(op or writer).index], lambda _: True, most=_MOST_BEFORE)}
        cleaned = [index for index in before if trace.ops[index].name.startswith("aten.nan_to_num")]
        if op is not None and not any_nonfinite(given):
            before = {each.index for each in trace.behind(cleaned, lambda _: True, most=_MOST_BEFORE)}
        for index, way in getattr(trace, "ways", {}).items():
            external = trace.externals[index]
            if way and external.first_reader in before:
                start = dataclasses.replace(replay, origin=external.first_reader, failed=True)
                return Remade(failed, start, way, external.tensor)
    if op is None or not operations:
        return None
    tape = getattr(trace, "tape", None)
    again = tape.forward(made) if isinstance(tape, Tape) else None
    known = None if again is None else _run_again(failed, again, (), made)
    if known is not None and known.replay.op is not None and known.replay.op.name == op.name:
        return Remade(known.failure, replay)
    return Remade(dataclasses.replace(failed, forward=None, root_call=None, tape=None, evidence=None), replay)
