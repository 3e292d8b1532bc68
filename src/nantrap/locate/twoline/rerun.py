"""The loss computed again in the two-line form: from its own source lines, without side effects.

The frame that called `backward` or `step` is still on the stack. Its statements between the head of the loop and the
backward pass are read from the source; those on which the loss depends are kept (a slice), compiled as they are, and
run by `Guarded`. The result counts only if it is the loss of the failed step again: the same graph of operations over
the same parameters, and the same value. Then the step can be traced and tried like one of `guard.attempt`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from nantrap.locate.batch import tensors_of
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Failure
from nantrap.locate.replay.replay import autocast_like, called_again, eagerly
from nantrap.locate.replay.rng import RngState
from nantrap.locate.replay.root_call import Factor, RootCall
from nantrap.locate.twoline.caller import (
    Frame,
    FrameworkCall,
    KeptFrame,
    Loop,
    last_entry,
    names_in,
    names_of_loop,
    near_callers,
    taken_by_loop,
    target_of_loop,
)
from nantrap.locate.twoline.guarded import Guarded, Kept
from nantrap.locate.twoline.rewriting import NotRepeatable, body_of, compiled, guarded_tree
from nantrap.locate.twoline.same_loss import applied_after, ends_of, same_inputs, same_value
from nantrap.locate.twoline.slicing import bad_data, depended_on, holds_tensors
from nantrap.locate.wrapping import arguments_by_name

_RESULT = "__nantrap_loss__"
_MOST_FRAMES = 4
_MOST_ASSIGNED = 8
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_DEPTHS = ((True, False), (False, False), (False, True))
"""How far a loss is followed back: to all that made it, to what carries no graph and is finite, and to bad data too."""


@dataclass(frozen=True, slots=True)
class Again:
    """The way to compute the loss again.

    Attributes:
        forward: computes it from a batch.
        batch: the batch of the failed step, or an empty tuple where the statements do not show what it was.
        rng: the random streams at which it begins.
        lines: the first and the last line that were run, and their file; `None` if the model alone was called.
    """

    forward: Callable[[Any], Tensor]
    batch: Any
    rng: RngState
    lines: tuple[str, int, int] | None


def compute_again(failed: Failure, budget: Budget | None = None) -> Again | None:
    """Find a way to compute the failed loss again; `None` where none gives the same loss. Never raises.

    Args:
        failed: the step that failed.
        budget: how long the search may take; one way is tried in any case.
    """
    call = failed.root_call
    if failed.loss is None or failed.loss.grad_fn is None or (call is not None and call.passed):
        return None
    calls = [] if call is None else call.chain()
    if (by_framework := _by_framework(failed, calls)) is not None:
        return by_framework
    without_batch: Again | None = None
    tried: set[tuple[types.CodeType, tuple[str, ...]]] = set()
    for frame in _places():
        for statements, expression in _candidates(frame, failed.loss):
            for follows_all, keeps_data in _DEPTHS:
                with contextlib.suppress(NotRepeatable, Exception):
                    repeats = without_batch is not None
                    taken = bad_data(statements, names_in(frame), repeats=repeats) if keeps_data else frozenset()
                    if keeps_data and not taken:
                        continue
                    part = _Slice.of(frame, statements, expression, calls, follows_all=follows_all, taken=taken)
                    if (without_batch is not None and not part.has_batch) or (part.code, part.batch_names) in tried:
                        continue
                    for ambient, begin in _settings(calls[0]) if calls else ((None, RngState.capture()),):
                        if tried and budget is not None and budget.spent:
                            return without_batch
                        tried.add((part.code, part.batch_names))
                        again = _Rerun(part, failed, calls, ambient, begin).verified()
                        if again is not None and part.has_batch:
                            return again
                        without_batch = without_batch or again
    return without_batch or _by_the_model(failed, calls)


def _by_framework(failed: Failure, calls: list[RootCall]) -> Again | None:
    """By the function with which a framework computes the loss of a batch."""
    entry = (calls[-1].entry or last_entry()) if calls else None
    if entry is None:
        return None
    with contextlib.suppress(NotRepeatable, Exception):
        part = _Slice.of_entry(entry)
        for ambient, begin in _settings(calls[0]):
            if (again := _Rerun(part, failed, calls, ambient, begin).verified()) is not None:
                return again
    return None


def _by_the_model(failed: Failure, calls: list[RootCall]) -> Again | None:
    """By the model alone, which has computed the loss itself, as those of transformers do."""
    if len(calls) != 1 or failed.loss is None or calls[0].nodes.isdisjoint(ends_of(failed.loss)):
        return None
    (call,) = calls
    module = called_again(call, failed)
    batch, given = _as_batch(call, module)

    def forward(batch: Any) -> Any:
        args, named = given(batch)
        with torch.enable_grad(), autocast_like(call.autocast), call.as_made(failed.root):
            return module(*args, **named)

    return _verified(failed, forward, Again(forward, batch, call.rng, None), call.factors)


def _as_batch(call: RootCall, module: nn.Module) -> tuple[Any, Callable[[Any], tuple[Sequence[Any], dict[str, Any]]]]:
    """What a call of the model was given, as a batch, and how another batch is given to it.

    Arguments have the names in the model's `forward`; where a framework sends another method through the call, they
    have none. A single tensor is the batch itself.
    """
    args, named = call.args, call.kwargs
    if call.redirected is None and (named or len(args) != 1 or not isinstance(args[0], Tensor)):
        names = list(arguments_by_name(module, args, named))[len(args) :]
        return arguments_by_name(module, args, named), lambda batch: (
            list(batch.values())[: len(args)],
            {name: batch[name] for name in names},
        )
    if not named:
        return (args[0], lambda batch: ((batch,), {})) if len(args) == 1 else (args, lambda batch: (batch, {}))
    return ((args, named), lambda batch: batch) if args else (named, lambda batch: ((), batch))


def _settings(call: RootCall) -> Iterator[tuple[tuple[str, torch.dtype] | None, RngState]]:
    """The autocast region around the statements, and the random streams at which they began: what is possible.

    Numbers may be drawn before the model is called (noise, time steps), from the end of the step before on. Whether
    they were is seen when the model is called: its streams are known.
    """
    for ambient in dict.fromkeys((None, call.autocast)):
        yield ambient, call.rng
        if call.stream is not None:
            yield ambient, call.rng._replace(torch_cpu=call.stream)


def _verified(failed: Failure, forward: Callable[[Any], Any], way: Again, factors: Sequence[Factor]) -> Again | None:
    """A way, if one of the tensors that it gives is the loss of the failed step, or that loss before a framework
    divided it.

    Args:
        failed: the failed step.
        forward: what is run to compute the loss.
        way: the batch with which that begins, and its random streams.
        factors: by what the loss was divided and multiplied at its end, as far as that was read.
    """
    assert failed.loss is not None
    with contextlib.suppress(NotRepeatable, Exception), failed.rewound(), eagerly():
        way.rng.restore()
        for path, found in tensors_of(forward(way.batch)):
            if found.numel() != 1 or found.grad_fn is None:
                continue
            outer = applied_after(failed.loss, found, factors)
            if outer is not None and same_value(failed, float(outer(found).detach())):
                return replace(way, forward=functools.partial(_loss_of, forward, path, outer))
    return None


def _loss_of(forward: Callable[[Any], Any], path: str, outer: Callable[[Tensor], Tensor], batch: Any) -> Tensor:
    """The loss of a batch: where it is in what `forward` gives, and what a framework does with it after that."""
    return outer(dict(tensors_of(forward(batch)))[path])


# ---- which statements


def _places() -> Iterator[Frame]:
    """The frames of the program. One in which a loop with a backward pass has ended, over the micro-batches of a step,
    comes before that at the line of the backward pass: the names of the last round are still there."""
    for frame in near_callers(_MOST_FRAMES):
        with contextlib.suppress(NotRepeatable):
            ended = [each for each in statements_before(frame) if isinstance(each, Loop)]
            lines = [call.lineno for loop in ended for call in ast.walk(loop) if _is_backward(call)]
            if lines:
                yield KeptFrame(frame.f_code, lines[-1], frame.f_globals, names_in(frame))
        yield frame


def _is_backward(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def _candidates(frame: Frame, loss: Tensor) -> Iterator[tuple[list[ast.stmt], ast.expr]]:
    """Statements of a frame, in order, and an expression after them that may be the loss."""
    with contextlib.suppress(NotRepeatable):
        statements, current = _before(frame)
        held = names_in(frame)
        for name, value in held.items():
            if isinstance(value, Tensor) and (value is loss or value.grad_fn is loss.grad_fn):
                yield [*statements, current], ast.copy_location(ast.Name(name, ast.Load()), current)
                yield statements, ast.copy_location(ast.Name(name, ast.Load()), current)  # `if isnan(loss): loss = 0`
        for statement in (current, *reversed(statements)):
            for call in ast.walk(statement):
                if _is_backward(call):
                    function: Any = call.func
                    given = call.args[0] if call.args else function.value
                    until = statements[: statements.index(statement)] if statement is not current else statements
                    if isinstance(given, ast.Call) and getattr(given.func, "attr", "") == "scale" and given.args:
                        yield until, given.args[0]
                    yield until, given
                    break
            else:
                continue
            break
        if not any(value is loss for value in held.values()):  # the script replaced it, and trains on another one
            yield from _assigned(statements)


def _assigned(statements: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], ast.expr]]:
    """The names that single statements assign, the last ones first, each with the statements up to there."""
    for position in range(len(statements) - 1, max(len(statements) - 1 - _MOST_ASSIGNED, -1), -1):
        statement = statements[position]
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = ast.Name(statement.targets[0].id, ast.Load())
            yield statements[: position + 1], ast.copy_location(name, statement)


def statements_before(frame: Frame) -> list[ast.stmt]:
    """The statements that ran before the current one in this round of the innermost loop."""
    return _before(frame)[0]


def _before(frame: Frame) -> tuple[list[ast.stmt], ast.stmt]:
    """The statements that ran before the current one in this round of the innermost loop, and the current one."""
    body = body_of(frame.f_code)
    before: list[ast.stmt] = []
    line = frame.f_lineno
    while True:
        position = next((i for i, s in enumerate(body) if s.lineno <= line <= (s.end_lineno or s.lineno)), None)
        if position is None:
            raise NotRepeatable("no statement at this line")
        same_line = [s for s in body[position:] if s.lineno <= line <= (s.end_lineno or s.lineno)]
        current = same_line[-1]  # `guard.backward(loss); guard.step()`: the last one is running
        before += _passed([*body[:position], *same_line[:-1]])
        inner = _block_at(current, line)
        if not inner or isinstance(current, (ast.FunctionDef, ast.ClassDef)):
            return before, current
        if isinstance(current, Loop) and inner is current.body:
            before = []
        body = inner


def _block_at(statement: ast.stmt, line: int) -> list[ast.stmt]:
    """The statements inside another one, around a line; empty if there are none."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if not isinstance(block, list) or not block or not isinstance(block[0], ast.stmt):
            continue
        if block[0].lineno <= line <= max(each.end_lineno or 0 for each in block):
            return block
    return []


def _passed(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements that the program has passed. A branch that ends with `return` or `continue` was not taken then."""
    kept: list[ast.stmt] = []
    for each in statements:
        draws = isinstance(each, ast.If) and any(isinstance(n, ast.NamedExpr) for n in ast.walk(each.test))
        if not isinstance(each, ast.If) or draws:
            kept.append(each)
        elif isinstance(each.body[-1], _LEAVES):
            kept += _passed(each.orelse)
        elif each.orelse and isinstance(each.orelse[-1], _LEAVES):
            kept += _passed(each.body)
        else:
            kept.append(each)
    return kept


@dataclass(frozen=True, slots=True)
class _Slice:
    """The statements on which a loss depends, compiled, with the names they start from."""

    code: types.CodeType
    names: dict[str, Any]
    batch_names: tuple[str, ...]
    lines: tuple[str, int, int]
    in_result: str = ""
    """Where the loss is in a result that is a dictionary; empty if its values are the terms of the loss."""

    @property
    def has_batch(self) -> bool:
        """Whether it starts from tensors: an index or a loader, from which the statements take them, is no batch."""
        return any(holds_tensors(self.names[name]) for name in self.batch_names)

    @classmethod
    def of(
        cls,
        frame: Frame,
        statements: Sequence[ast.stmt],
        expression: ast.expr,
        calls: list[RootCall],
        *,
        follows_all: bool,
        taken: frozenset[str],
    ) -> _Slice:
        """The statements on which an expression depends, compiled again, with the values that they began with."""
        held = names_in(frame)
        loaded = _loaded(calls, frame)
        found = depended_on(
            statements,
            expression,
            held,
            follows_all=follows_all,
            arguments=functools.partial(_arguments, calls, held),
            begun=loaded,
            taken=taken,
        )
        kept, held = found.statements, {**held, **found.before}
        if not kept and isinstance(expression, ast.Name):
            raise NotRepeatable("the loss is not computed in this function")
        result = ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], expression), expression)
        ast.fix_missing_locations(result)
        once = ast.For(
            ast.Name("__nantrap_once__", ast.Store()),
            ast.Tuple([ast.Constant(0)], ast.Load()),
            [guarded_tree(s) for s in (*kept, result)],
            [],
        )
        ast.copy_location(once, kept[0] if kept else expression)
        code = frame.f_code
        loop = names_of_loop(frame)
        arguments = _parameters(code)
        starting = loop or {n for n in arguments if holds_tensors(held.get(n))}
        starting |= loaded.keys() & found.before.keys()
        # `x = torch.randint(...)` makes a batch as well; `mean = 0.9 * mean + ...` is what the loop keeps between steps
        kept_by_loop = found.carried - taken_by_loop(frame) - arguments
        made_in_loop = {n for n in found.cut - kept_by_loop if holds_tensors(held[n])}
        needed = {n for n in (starting & found.needed) | made_in_loop if n in held}
        taken_last = needed & {*target_of_loop(frame)}
        batch = tuple(sorted(n for n in needed if n in taken_last or not _holds_any(held, n, taken_last)))
        shown: Sequence[ast.stmt | ast.expr] = kept or [expression]
        first = min(node.lineno for node in shown)
        last = max(node.end_lineno or node.lineno for node in shown)
        return cls(compiled([once], code), {**frame.f_globals, **held}, batch, (code.co_filename, first, last))

    @classmethod
    def of_entry(cls, entry: FrameworkCall) -> _Slice:
        """The call of a framework, with the batch by the name `batch`."""
        code = entry.code
        if code is None:
            raise NotRepeatable("a function without source")
        call = f"{_RESULT} = function(*before, batch, *after, **named)"
        statements = [guarded_tree(each) for each in ast.parse(call).body]
        names = {
            "function": entry.function,
            "before": entry.before,
            "batch": entry.batch,
            "after": entry.after,
            "named": dict(entry.named),
        }
        last = max((line for *_, line in code.co_lines() if line is not None), default=code.co_firstlineno)
        lines = (code.co_filename, code.co_firstlineno, last)
        return cls(compiled(statements, code), names, ("batch",), lines, in_result="loss")


def _parameters(code: types.CodeType) -> set[str]:
    """The names of a function's parameters, `*args` and `**kwargs` among them."""
    rest = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + rest])


def _holds_any(held: Mapping[str, Any], name: str, others: Iterable[str]) -> bool:
    """Whether a name holds all tensors of one of the others: the micro-batches of a step, of which that is one."""
    own = {id(tensor) for _, tensor in tensors_of(held[name])}
    parts = [{id(tensor) for _, tensor in tensors_of(held[other])} for other in others]
    return any(part and part <= own for part in parts)


def _loaded(calls: list[RootCall], frame: Frame) -> dict[str, Any]:
    """What the loop took from its data loader, by the names it gave to it: `for x, y in loader`."""
    origin = calls[-1].origin if calls else None
    names, tensors = target_of_loop(frame), [] if origin is None else origin.given()
    return dict(zip(names, tensors, strict=True)) if len(names) == len(tensors) else {}


def _arguments(calls: list[RootCall], held: Mapping[str, Any], call: ast.Call) -> Mapping[str, Any]:
    """What the model was given under plain names, if this is its one call of the step."""
    called = held.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if len(calls) != 1 or not isinstance(called, nn.Module) or any(isinstance(a, ast.Starred) for a in call.args):
        return {}
    pairs = [*zip(call.args, calls[0].args, strict=False)]
    pairs += [(each.value, calls[0].kwargs[each.arg]) for each in call.keywords if each.arg in calls[0].kwargs]
    return {name.id: value for name, value in pairs if isinstance(name, ast.Name)}


# ---- running them


class _Rerun:
    def __init__(
        self,
        part: _Slice,
        failed: Failure,
        calls: list[RootCall],
        ambient: tuple[str, torch.dtype] | None,
        begin: RngState,
    ) -> None:
        self._part = part
        self._failed = failed
        self._calls = calls
        self._ambient = ambient
        self._begin = begin
        self._called = 0
        self._checks_streams = True
        self._compares = True
        self._missing: set[int] = set()
        self._kept_before: Sequence[Kept] = ()
        self._before: list[Kept] = []

    def verified(self) -> Again | None:
        """The way to compute it again, if it gives the loss of the failed step."""
        names, chosen = self._part.names, self._part.batch_names
        batch = names[chosen[0]] if len(chosen) == 1 else {name: names[name] for name in chosen} if chosen else ()
        way = Again(self.forward, batch, self._begin, self._part.lines)
        compute = functools.partial(
            _verified, self._failed, self.forward, way, self._calls[-1].factors if self._calls else ()
        )
        try:
            found = compute()
            if self._before:  # it counted, or drew: the step began with what a whole run leads from to what was found
                self._compares = False
                compute()
                self._compares, self._kept_before = True, tuple(self._before)
                found = compute()
            return None if self._before else found
        finally:
            self._checks_streams = self._compares = False

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        self._called = 0
        self._missing = {id(call) for call in self._calls if self._calls[-1].incomplete}
        names = dict(self._part.names)
        chosen = self._part.batch_names
        if len(chosen) == 1:
            names[chosen[0]] = batch
        elif chosen:
            names.update(batch)
        root = self._failed.root
        restored = (*root.parameters(), *root.buffers())
        guarded = Guarded(root, self._call_model, restored=restored, begun=self._kept_before)
        self._before = guarded.before
        if self._part.in_result:
            names["batch"] = guarded.copied(names["batch"])
        try:
            with torch.enable_grad(), autocast_like(self._ambient):
                found = guarded.run(self._part.code, names)[_RESULT]
            if self._compares and self._missing:
                raise NotRepeatable("other values than those that the model was given")
        except NotRepeatable as reason:
            if self._checks_streams:
                raise
            raise RuntimeError(str(reason)) from reason  # a changed batch may take another branch of the code
        if isinstance(found, Mapping) and self._part.in_result:
            found = found[self._part.in_result]
        if isinstance(found, Mapping):
            terms = [term if isinstance(term, Tensor) else torch.tensor(float(term)) for term in found.values()]
            found = functools.reduce(operator.add, [term if term.dim() == 0 else term.sum() for term in terms])
        if not isinstance(found, Tensor):
            raise (NotRepeatable if self._checks_streams else RuntimeError)("a loss that is no tensor")
        return found

    def _call_model(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The model as it was called: with the random streams of that call."""
        if not self._calls:
            raise NotRepeatable("a call of the model that was not seen")
        if self._compares and torch.is_grad_enabled():
            self._compare(module, args, kwargs)
        self._called += 1
        return module(*args, **kwargs)

    def _compare(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Refuse a call that was not made so. Where some calls were not recorded, those that were must all be made."""
        now, complete = RngState.capture(), not self._calls[-1].incomplete
        if complete and self._called == 0 and not _same_streams(self._calls[0].rng, now):
            raise NotRepeatable("random numbers that were drawn before the model was called")
        # NaN is equal to NaN: where the loss is, only what the model is given shows that the values are those of then
        own = [call for call in self._calls if module is (self._failed.root if call.module is None else call.module)]
        if complete and not same_inputs(own, args, kwargs):
            raise NotRepeatable("other values than those that the model was given")
        if not complete:
            made = [call for call in own if same_inputs([call], args, kwargs) and _same_streams(call.rng, now)]
            self._missing -= set(map(id, made))


def _same_streams(one: RngState, other: RngState) -> bool:
    """Whether torch's random streams are at the same place."""
    return torch.equal(one.torch_cpu, other.torch_cpu) and all(map(torch.equal, one.torch_devices, other.torch_devices))
