"""What a step reads besides weights, batch and the global random streams, and how it is restored.

A program may draw from its own generators and keep state in plain attributes of its modules: a Python counter, a
tensor that is no buffer. Its other objects, closures and globals can hold such values as well. A replay that does not
restore those is another step, and proves nothing about this one.

`Program` finds them: generators reachable from the modules, from the function that computes the loss (its closure and
the globals it names) and from the batch; attributes of the modules, and of objects reachable from that function; the
variables that the function shares with the code around it. `Program.capture` is called before each step, so it is
short: a function in which three walks found no generator is not walked again, and values that did not change in the
first steps are checked only at intervals. What cannot be restored (an iterator, an open file) is found after a failure
and named.

A replay of the step restores all of it. A refused step, a rollback and the steps before it restore generators and
what the modules hold; the program's other objects stay as they are: they may count attempts, or collect results.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import io
import random
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from nantrap.finite import copy_of, same_values, write
from nantrap.locate.python_private import NUMPY_GENERATOR, PYTHON_GENERATOR

_DEEPEST = 4
_WALKS = 3
_FULL_STEPS = 4
_RESCAN_EVERY = 64
"""A program in which nothing was found is checked again after this many steps."""
_LARGEST = 1 << 16
_MOST_ITEMS = 64
_MOST_BESIDE = 1024
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_OWN = frozenset(vars(nn.Module()))
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_UNREPEATABLE = (random.SystemRandom, types.GeneratorType, io.IOBase)


Kept = tuple[Any, str, Any]
"""A value that was copied: whose it is (an object, a cell, the globals of a file), its name, and the copy."""


@dataclass(frozen=True, slots=True)
class ProgramState:
    """A program's own generators, attributes of modules, and values that its other code holds, at one moment."""

    generators: tuple[tuple[Any, Any], ...] = ()
    attributes: tuple[Kept, ...] = ()
    beside: tuple[Kept, ...] = ()

    def restore(self, *, beside: bool = True) -> None:
        """Put them back. Values are copied again, so that a state can be restored more than once.

        Args:
            beside: restore what code outside the modules holds, too. Only for a replay of the same step, which ends
                with what `now` gave before: the program may have replaced older values by others.
        """
        for generator, state in self.generators:
            _write_generator(generator, state)
        for owner, name, value in (*self.attributes, *(self.beside if beside else ())):
            _put_back(owner, name, value)

    def now(self) -> ProgramState:
        """Takes these generators and values as they are at this moment."""
        return ProgramState(
            tuple((generator, _read_generator(generator)) for generator, _ in self.generators),
            tuple((owner, name, _copied(_held(owner, name))) for owner, name, _ in self.attributes),
            tuple((owner, name, _copied(_held(owner, name))) for owner, name, _ in self.beside),
        )

    def changed(self) -> tuple[str, ...]:
        """The names of the attributes whose values are not those of this state."""
        return tuple(
            f"{type(module).__name__}.{name}"
            for module, name, value in self.attributes
            if not _equal(_held(module, name), value)
        )


class Program:
    """Finds a program's own state and captures it before a step. Holds what it found in the steps so far.

    Attributes:
        quiet: nothing was found in the first steps, so that `capture` need not be called for known functions.
        rest: how many more calls of `capture` may be left out in a quiet program, before it is captured again.
        clean: the code of functions from which no generator can be reached.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = [m for module in modules for m in module.modules() if not _is_torchs(type(m))]
        self._captures = 0
        self.quiet = False
        self.rest = 0
        self.clean: set[Any] = set()
        self._walks: dict[Any, int] = {}
        self._moving: dict[tuple[int, str], tuple[Any, str]] = {}
        self._last: tuple[Kept, ...] = ()
        self._beside: dict[tuple[int, str], tuple[Any, str]] = {}  # by owner, which is held: its id stays its own
        self._held = list(self._module_generators())

    def capture(self, *reachable: Any) -> ProgramState | None:
        """The state just before a step; `None` if there is none.

        Args:
            reachable: the function that computes the loss, and the batch.
        """
        self._captures += 1
        found: dict[int, Any] = {id(generator): generator for generator in self._held}
        for value in reachable:
            code = _code_of(value)
            if code is not None:
                if self._walks.get(code, 0) >= _WALKS:
                    continue
                before = len(found)
                self._walk_function(value, found)
                self._walks[code] = 0 if len(found) > before else self._walks.get(code, 0) + 1
            elif isinstance(value, (tuple, list, dict, *_GENERATORS)):
                _walk(value, found, depth=_DEEPEST - 1, seen=set())
        self._notice_changes()
        attributes, beside = tuple(self._attributes()), tuple(self._values_beside())
        self._last = attributes + beside
        self.clean = {code for code, walks in self._walks.items() if walks >= _WALKS}
        self.quiet = self._captures > _FULL_STEPS and not (found or self._moving or self._held)
        self.rest = _RESCAN_EVERY - 1 if self.quiet else 0
        if not found and not attributes and not beside:
            return None
        generators = tuple((generator, _read_generator(generator)) for generator in found.values())
        return ProgramState(generators, attributes, beside)

    def _walk_function(self, function: Any, found: dict[int, Any]) -> None:
        """Collect what is reachable from the function: generators, and where it may keep values."""
        seen: set[int] = set()
        for _, item in _named(function, depth=0, seen=seen):
            if _is_own_generator(item):
                found[id(item)] = item
            for owner, name in _places(item) if len(self._beside) < _MOST_BESIDE else ():
                self._beside[id(owner), name] = owner, name

    def _notice_changes(self) -> None:
        """Remember the values that are not what they were before the last step."""
        for owner, name, value in self._last:
            if not _equal(_held(owner, name), value):
                self._moving[id(owner), name] = owner, name

    @property
    def _is_full(self) -> bool:
        """Whether all values are copied now, and not only those that were seen to change."""
        return self._captures <= _FULL_STEPS or self.quiet or self._captures % _RESCAN_EVERY == 0

    def _attributes(self) -> Iterator[Kept]:
        """The attributes of modules that are state, copied."""
        if not self._is_full:
            yield from _copies(place for key, place in self._moving.items() if key not in self._beside)
            return
        for module in self._modules:
            yield from _copies((module, name) for name in list(module.__dict__) if name not in _OWN)

    def _values_beside(self) -> Iterator[Kept]:
        """What the program's other code holds and is state, copied."""
        places = self._beside if self._is_full else [key for key in self._moving if key in self._beside]
        yield from _copies(self._beside[key] for key in places)

    def _module_generators(self) -> Iterator[Any]:
        found: dict[int, Any] = {}
        for module in self._modules:
            for name, value in module.__dict__.items():
                if name not in _OWN:
                    _walk(value, found, depth=_DEEPEST - 1, seen=set())
        yield from found.values()


def _copies(places: Iterable[tuple[Any, str]]) -> Iterator[Kept]:
    """The values at these places that a step may change, copied."""
    for owner, name in places:
        if _is_state(value := _held(owner, name)):
            yield owner, name, _copied(value)


def _places(item: Any) -> Iterator[tuple[Any, str]]:
    """Where an object or a function may keep values: its attributes, its closure, the globals that it assigns."""
    if isinstance(item, types.FunctionType):
        yield from ((cell, _CONTENTS) for cell in item.__closure__ or ())
        yield from ((item.__globals__, name) for name in _assigned_globals(item.__code__))
    elif not isinstance(item, (nn.Module, torch.optim.Optimizer)) and not _is_torchs(type(item)):
        yield from ((item, name) for name in getattr(item, "__dict__", ()))


@functools.lru_cache(maxsize=1024)
def _assigned_globals(code: types.CodeType) -> tuple[str, ...]:
    """The names that a function declares as global and assigns."""
    return tuple({i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"})


_CONTENTS = "cell_contents"


def _held(owner: Any, name: str) -> Any:
    """The value now; `None` where there is none any more."""
    if isinstance(owner, types.CellType):
        return getattr(owner, name, None)  # empty before the first assignment
    return (owner if isinstance(owner, dict) else owner.__dict__).get(name)


def _put_back(owner: Any, name: str, value: Any) -> None:
    """Write a copy of the value, into the same tensor or container where there is one: others may hold it as well."""
    current = _held(owner, name)
    if (
        isinstance(current, Tensor)
        and isinstance(value, Tensor)
        and _fits(current, value)
        # `data`: it does not count as a write, because a graph that holds the tensor may still be run backward
        and (same_values(current, value) or write(current.data, value))
    ):
        return
    if type(current) is type(value) and isinstance(current, (dict, list, deque, set)):
        if not _equal(current, value):
            current.clear()
            (current.extend if isinstance(current, (list, deque)) else current.update)(_copied(value))
    elif isinstance(owner, types.CellType):
        owner.cell_contents = _copied(value)
    else:
        (owner if isinstance(owner, dict) else owner.__dict__)[name] = _copied(value)


def cannot_rewind(*reachable: Any) -> tuple[str, ...]:
    """What a step reads and no replay can restore, by name: iterators, files, the operating system's randomness."""
    names: dict[str, None] = {}
    for value in reachable:
        for name, item in _named(value, depth=0, seen=set()):
            if isinstance(item, _UNREPEATABLE) or (
                hasattr(item, "__next__") and not isinstance(item, (nn.Module, Tensor))
            ):
                names[f"{name} ({type(item).__name__})"] = None
    return tuple(names)


def schedules_in(functions: Iterable[Any]) -> list[LRScheduler]:
    """The schedules of learning rates that are reachable from functions."""
    seen: set[int] = set()
    reached = (item for function in functions for _, item in _named(function, depth=0, seen=seen))
    return [item for item in reached if isinstance(item, LRScheduler)]


def _walk(value: Any, found: dict[int, Any], *, depth: int, seen: set[int]) -> None:
    """Collect the generators reachable from a value."""
    for _, item in _named(value, depth=depth, seen=seen):
        if _is_own_generator(item):
            found[id(item)] = item


def _is_own_generator(item: Any) -> bool:
    return isinstance(item, _GENERATORS) and not isinstance(item, random.SystemRandom) and not _is_global(item)


def _named(value: Any, *, depth: int, seen: set[int], name: str = "") -> Iterator[tuple[str, Any]]:
    """What is reachable from a value: closures, named globals, arguments of partials, plain containers, attributes."""
    if isinstance(value, (_PLAIN, Tensor, types.ModuleType, type)) or id(value) in seen:
        return
    seen.add(id(value))
    yield name, value
    if depth >= _DEEPEST:
        return
    for inner, item in _inside(value, name):
        yield from _named(item, depth=depth + 1, seen=seen, name=inner)


def _inside(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What is reachable from a value in one step, by name; `name` for what has none of its own."""
    if isinstance(value, types.MethodType):
        yield value.__func__.__name__, value.__func__
        yield type(value.__self__).__name__, value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _inside_function(value)
    elif isinstance(value, functools.partial):
        yield from ((name, part) for part in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, dict):
        yield from ((str(key), item) for key, item in list(value.items())[:_MOST_ITEMS])
    elif isinstance(value, (list, tuple, set, deque)):
        yield from ((name, item) for item in list(value)[:_MOST_ITEMS])
    elif not isinstance(value, (*_GENERATORS, torch.optim.Optimizer)) and not _is_torchs(type(value)):
        own = _OWN if isinstance(value, nn.Module) else ()
        yield from ((key, item) for key, item in list(getattr(value, "__dict__", {}).items()) if key not in own)


def _inside_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function reads besides its arguments: its closure, the globals that it names, and its defaults."""
    for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that nothing was assigned to yet
            yield free, cell.cell_contents
    named = function.__globals__
    yield from ((word, named[word]) for word in _words(function.__code__) if word in named)
    for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield function.__name__, default


@functools.lru_cache(maxsize=1024)
def _words(code: types.CodeType) -> tuple[str, ...]:
    """The global names a function uses, those of the functions written inside it included."""
    inner = [word for constant in code.co_consts if isinstance(constant, types.CodeType) for word in _words(constant)]
    return (*code.co_names, *inner)


def _code_of(value: Any) -> Any:
    if isinstance(value, functools.partial):
        return _code_of(value.func)
    function = getattr(value, "__func__", value)
    return getattr(function, "__code__", None)


def _is_torchs(kind: type) -> bool:
    return (kind.__module__ or "").partition(".")[0] in ("torch", "nantrap")


def _is_global(generator: Any) -> bool:
    """The streams that `RngState` restores already."""
    return (
        generator is PYTHON_GENERATOR
        or generator is NUMPY_GENERATOR
        or (isinstance(generator, torch.Generator) and generator is torch.default_generator)
    )


def _read_generator(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state()
    return copy.deepcopy(generator.bit_generator.state)


def _write_generator(generator: Any, state: Any) -> None:
    """Put a generator back to a state, whichever library it is of."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _is_state(value: Any) -> bool:
    """Whether an attribute is a value a forward pass may change: a number, a small tensor, a small plain container."""
    if isinstance(value, bool | str | bytes):
        return isinstance(value, bool)
    if isinstance(value, (int, float, complex)):
        return True
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter) and value.grad_fn is None and value.numel() <= _LARGEST
    if isinstance(value, (list, deque, dict, set)) and len(value) <= _MOST_ITEMS:
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return all(isinstance(item, _PLAIN) or (isinstance(item, Tensor) and _is_state(item)) for item in items)
    return False


def _copied(value: Any) -> Any:
    """A copy of a value and of what it holds; tensors with a graph and unknown objects as they are."""
    if isinstance(value, Tensor):
        copied = copy_of(value) if value.grad_fn is None and not value.requires_grad else None
        return value if copied is None else copied
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value
    if isinstance(value, deque):
        return deque((_copied(item) for item in value), maxlen=value.maxlen)
    if isinstance(value, (list, set)):
        return type(value)([_copied(item) for item in value])
    return value


def _fits(current: Tensor, kept: Tensor) -> bool:
    """Whether a value can be written back into the same tensor, which others may hold as well."""
    return (
        not (current.is_nested or kept.is_nested)
        and current.shape == kept.shape
        and current.dtype == kept.dtype
        and current.device == kept.device
        and current.grad_fn is None
        and not current.requires_grad
    )


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are the same, where NaN equals NaN."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return same_values(a, b)
    if isinstance(a, Tensor) or isinstance(b, Tensor) or type(a) is not type(b):
        return a is b
    if isinstance(a, (list, deque)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b) or (a != a and b != b)
