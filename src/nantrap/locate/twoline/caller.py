"""The caller of the guard: the user's frame on the stack, and the values of its names."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from nantrap.finite import any_nonfinite, bad_places
from nantrap.locate.batch import tensors_of
from nantrap.locate.source import is_installed, is_user_code
from nantrap.locate.trace.storage import share_memory
from nantrap.locate.twoline.rewriting import NotRepeatable, tree_of


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A frame as it was: where it was, and the values of its names then. Looks like a frame to those who read one.

    `ended` if the line is over, and the values are those behind it.
    """

    f_code: CodeType
    f_lineno: int
    f_globals: dict[str, Any]
    values: dict[str, Any]
    ended: bool = False

    @property
    def f_locals(self) -> dict[str, Any]:
        """The values of its names, in a dictionary of its own."""
        return dict(self.values)

    @property
    def f_back(self) -> None:
        """Its callers are kept beside it."""


Frame = FrameType | KeptFrame
Loop = ast.For | ast.AsyncFor | ast.While


def keep_frames(most: int = 4) -> list[KeptFrame]:
    """The innermost frames of the user's code as they are now. They keep alive what these frames hold."""
    return [KeptFrame(f.f_code, f.f_lineno, f.f_globals, names_in(f)) for f in near_callers(most)]


def keep_leaves(most: int = 4) -> list[KeptFrame]:
    """Keeps the frames without what they have computed with a graph: only what a model is given, and its settings."""
    kept = keep_frames(most)
    for frame in kept:
        for name in [n for n, v in frame.values.items() if isinstance(v, Tensor) and v.grad_fn is not None and v.dim()]:
            del frame.values[name]
    return kept


def near_callers(most: int) -> Iterator[Frame]:
    """The innermost frames of the program itself, and with them those of a framework in between, as many of each."""
    counted = {True: 0, False: 0}
    for frame in callers():
        installed = is_installed(frame.f_code)
        counted[installed] += 1
        if counted[installed] <= most:
            yield frame


def caller() -> Frame | None:
    """The innermost frame of the user's code. Do not keep it: a frame keeps everything in it alive."""
    if _instead:
        return next(iter(_instead[-1]), None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return frame


def callers() -> Iterator[Frame]:
    """The frames of the user's code, the innermost first: a helper that tests a loss, then what computed it."""
    if _instead:
        yield from _instead[-1]
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code):
            yield frame
        frame = frame.f_back


_instead: list[Sequence[Frame]] = []
"""Frames that are used in the place of those on the stack."""


@contextlib.contextmanager
def seen_from(frames: Sequence[Frame]) -> Iterator[None]:
    """Makes the user's code appear to be where these frames were kept."""
    _instead.append(frames)
    try:
        yield
    finally:
        _instead.pop()


@contextlib.contextmanager
def ended_by(error: BaseException) -> Iterator[None]:
    """The program has ended with an exception, mostly `SystemExit`: its frames are those of the traceback."""
    frames: list[FrameType] = []
    step = error.__traceback__
    while step is not None:
        if is_user_code(step.tb_frame.f_code):
            frames.insert(0, step.tb_frame)
        step = step.tb_next
    try:
        with seen_from(frames):
            yield
    finally:
        frames.clear()  # a frame keeps everything in it alive


def names_in(frame: Frame) -> dict[str, Any]:
    """The local names of a frame, without leaving anything behind in it."""
    found = dict(frame.f_locals)
    if isinstance(frame, KeptFrame):
        return found
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        frame.f_locals.clear()  # a copy that the frame would keep, and with it the failed batch
    return found


def batch_of_caller() -> dict[str, Tensor]:
    """The tensors without gradient the caller holds, by name: among them the batch that the guard was not given."""
    frame = caller()
    return {} if frame is None else _held_by(frame)


def _held_by(frame: Frame) -> dict[str, Tensor]:
    return {
        path: tensor
        for name, value in names_in(frame).items()
        for path, tensor in tensors_of(value, name)
        if tensor.grad_fn is None and not tensor.requires_grad
    }


def names_of_loop(frame: Frame) -> frozenset[str]:
    """The names that the loop around the frame's current line takes from its iterable, and does not assign again."""
    taken, made, _ = _names_of_loop(loops_around(frame))
    return taken - made


def taken_by_loop(frame: Frame) -> frozenset[str]:
    """The names that the loop around the frame's current line takes from its iterable, also those it changes then."""
    return _names_of_loop(loops_around(frame))[0]


def is_batch_of_loop(name: str, tensor: Tensor) -> bool:
    """Whether a tensor of the program is the batch of the step, or a part of it, by the loop around the caller's line.

    The loop takes it from its data, or makes it in every round beside another tensor with as many rows.
    """
    own = name.partition("[")[0]
    for frame in near_callers(2):
        taken, _, bound = _names_of_loop(loops_around(frame))
        if own in taken:
            return True
        if own in bound and tensor.dim() > 1:
            held = {path: each for path, each in _held_by(frame).items() if path.partition("[")[0] in bound | taken}
            alike = [path for path, each in held.items() if each.dim() and len(each) == len(tensor)]
            return any(path.partition("[")[0] != own for path in alike)
    return False


def target_of_loop(frame: Frame) -> tuple[str, ...]:
    """The names that the innermost loop around the frame's current line unpacks what it is given into, in order."""
    loops = [loop for loop in loops_around(frame) if isinstance(loop, ast.For)]
    if not loops:
        return ()
    target = max(loops, key=lambda loop: loop.lineno).target
    if isinstance(target, ast.Tuple) and target.elts and isinstance(target.elts[-1], ast.Tuple):
        target = target.elts[-1]  # `for i, (x, y) in enumerate(...)`
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return tuple(part.id for part in parts if isinstance(part, ast.Name))


def given_by_loop() -> list[Tensor]:
    """The tensors that the caller's loop took from its iterable: `for batch in loader`, or `batch = next(it)`.

    A name that the loop's body assigns again is left out: it holds what the program made.
    """
    frame = caller()
    return [] if frame is None else _tensors_of_names(frame, names_of_loop(frame))


def replaced_by_loop() -> list[Tensor]:
    """The tensors that the body of the caller's loop computed and gave a name that its iterable had given to others:
    `y = y / y.std()`."""
    frame = caller()
    if frame is None:
        return []
    return _tensors_of_names(frame, taken_by_loop(frame) - names_of_loop(frame))


def _tensors_of_names(frame: Frame, names: frozenset[str]) -> list[Tensor]:
    held = names_in(frame)
    return [tensor for name in names if name in held for _, tensor in tensors_of(held[name])]


def loops_around(frame: Frame) -> tuple[Loop, ...]:
    """The loops around the current line of a frame; none if its file is no Python."""
    try:
        return _loops_around(tree_of(frame.f_code.co_filename), frame.f_lineno)
    except NotRepeatable:
        return ()


@functools.lru_cache(maxsize=64)
def _loops_around(tree: ast.Module, line: int) -> tuple[Loop, ...]:
    loops = (node for node in ast.walk(tree) if isinstance(node, Loop))
    return tuple(loop for loop in loops if loop.lineno <= line <= (loop.end_lineno or 0))


@functools.lru_cache(maxsize=64)
def _names_of_loop(loops: tuple[Loop, ...]) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The names that the loops around a line take from their data, those that they compute or write into,
    and those of them that they bind.

    Kept, because a search for the loss asks for the same few lines many times.
    """
    taken: set[str] = set()
    made: set[str] = set()
    bound: set[str] = set()
    for loop in loops:
        if not isinstance(loop, ast.While):
            taken |= _stored(loop.target)
        for node in (inner for statement in loop.body for inner in ast.walk(statement)):
            if isinstance(node, ast.Assign):
                names = set().union(*(_stored(target) for target in node.targets))
                from_next = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "next"
                if from_next or _only_unpacks(node.value, taken):
                    taken |= names
                else:
                    made |= names
                    bound |= {n.id for target in node.targets for n in ast.walk(target) if _is_bound(n)}
            elif isinstance(node, ast.AugAssign):
                made |= _stored(node.target)
    return frozenset(taken), frozenset(made), frozenset(bound)


def _is_bound(node: ast.AST) -> TypeGuard[ast.Name]:
    """Whether a name is given a new value here; `table[0] = 1` does not."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _stored(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


_MOVES = frozenset({
    "to", "cuda", "cpu", "float", "double", "long", "int", "bool", "type", "contiguous", "clone", "detach",
    "pin_memory", "view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "t",
    "movedim", "expand", "requires_grad_", "get", "values", "items",
})  # fmt: skip
"""Methods that give the values of a tensor as they are; float16 is none of these dtypes."""


def _only_unpacks(value: ast.AST, taken: set[str]) -> bool:
    """`x, y = batch`, `x = batch["x"]` and `x, y = x.to(device), y.to(device)` take parts; they make nothing."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return all(_only_unpacks(each, taken) for each in value.elts)
    while isinstance(value, (ast.Subscript, ast.Attribute, ast.Call)):
        if isinstance(value, ast.Call) and not (isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES):
            return False
        value = value.func if isinstance(value, ast.Call) else value.value
    return isinstance(value, ast.Name) and value.id in taken


def find_in_batch(tensor: Tensor | None) -> tuple[str, Tensor] | None:
    """The bad tensor of the caller that `tensor` is part of; or, if `tensor` is not known, any bad one."""
    for path, candidate in batch_of_caller().items():
        if (tensor is None or share_memory(candidate, tensor)) and any_nonfinite([candidate]):
            return path, candidate
    return None


def by_program_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a call, where those that have no name in the function that was called (`args[1]`) have the name of
    the program's variable that they are."""
    named: dict[str, Any] = {}
    for name, value in arguments.items():
        own = "" if "[" not in name else variable_of(value)
        named[name if not own or own in arguments or own in named else own] = value
    return named


def variable_of(value: Any) -> str:
    """The variable of the program that is a tensor, in the functions that are running; empty if none is."""
    frames = near_callers(_MOST_NAMED) if isinstance(value, Tensor) else ()
    return next((name for frame in frames for name, each in names_in(frame).items() if each is value), "")


def name_in_program(tensor: Tensor) -> str:
    """What the program calls a bad tensor, by the variables of the functions that are running; empty if nothing.

    Either the tensor is one of theirs, or an object of theirs holds it (a table of a noise schedule), or it is bad at
    just the places of one: a batch that was noised on the way, or a list of numbers from which the tensor was made.
    """
    bad = bad_places(tensor)
    if not bool(bad.any()):
        return ""
    frames = list(near_callers(_MOST_NAMED))
    for frame in frames:
        for path, candidate in _held_by(frame).items():
            if share_memory(candidate, tensor):
                return path
    for frame in frames:
        for name, value in names_in(frame).items():
            for attribute, candidate in _attributes(value):
                if share_memory(candidate, tensor):
                    return f"{name}.{attribute}"
    for frame in frames:
        for name, value in names_in(frame).items():
            if any(_is_bad_at(candidate, bad) for candidate in (_as_tensor(value), value)):
                return name
    return ""


_MOST_NAMED = 4
_LONGEST_LIST = 65_536


def _attributes(value: Any) -> list[tuple[str, Tensor]]:
    """The tensors that an object holds under names of its own."""
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict) or isinstance(value, (Tensor, type, ModuleType)):
        return []
    return [(name, each) for name, each in list(held.items()) if isinstance(name, str) and isinstance(each, Tensor)]


def _is_bad_at(value: Any, bad: Tensor) -> bool:
    """Whether a tensor without gradient is bad at these places and no others; one number says too little."""
    if not isinstance(value, Tensor) or value.requires_grad or not value.is_floating_point() or bad.numel() < 2:
        return False
    return value.shape == bad.shape and value.device == bad.device and torch.equal(bad_places(value), bad)


def _as_tensor(value: Any) -> Tensor | None:
    """A list of numbers, or an array, as a tensor."""
    is_list = isinstance(value, (list, tuple)) and bool(value) and all(isinstance(each, (int, float)) for each in value)
    if not (is_list or type(value).__name__ == "ndarray") or len(value) > _LONGEST_LIST:
        return None
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        return torch.as_tensor(value)
    return None


class FrameworkCall(NamedTuple):
    """A call: `function(*before, batch, *after, **named)`. The loss is its result, or `"loss"` in its result."""

    function: Callable[..., Any]
    batch: Any
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}

    @property
    def code(self) -> CodeType | None:
        """The code of the function; `None` for one that has none in Python."""
        inner = self.function.__func__ if isinstance(self.function, MethodType) else self.function
        return inner.__code__ if isinstance(inner, FunctionType) else None


_last: list[FrameworkCall] = []


def note_entry(entry: FrameworkCall) -> None:
    """A framework is about to compute a loss."""
    _last[:] = [entry]


def last_entry() -> FrameworkCall | None:
    """The last call that was noted."""
    return _last[0] if _last else None


def forget_entry() -> None:
    """The training is over: nothing of it is kept alive."""
    _last.clear()
