"""The user's own functions run again without their side effects.

In the two-line form the guard gets no function that computes the loss. Its source lines are known, though, and most
loss functions are plain arithmetic on tensors. Here such code is compiled again from its source, with its own file name
and line numbers, and every call in it is checked before it is made:

-   functions and methods of torch, and pure functions of Python and a few libraries, are called as they are;
-   functions of the user's are compiled in the same way, and so are the `forward` methods of modules outside the model;
-   the model itself is called as it was called;
-   printing, logging by Lightning, metrics, and growing a list that existed before are left out;
-   a number that an object keeps may be assigned (a counter of steps), and the program's own generators may be drawn
    from: they are restored after the run;
-   everything else (any other attribute that is written, an iterator that is advanced, a file, an unknown library) ends
    the attempt with `NotRepeatable`, and nothing has happened.

An in-place write is allowed only into memory that was made during the same run, and into what is restored after it
(`_OnlyFresh`). A loss module with buffers gets copies of them for the run.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from nantrap.finite import size_in_bytes
from nantrap.locate.python_private import CACHED, PYTHON_GENERATOR
from nantrap.locate.replay.rng import rewound
from nantrap.locate.source import is_user_code
from nantrap.locate.torch_private import DispatchMode, schema_of
from nantrap.locate.trace.storage import Memory, tensors_in
from nantrap.locate.twoline.rewriting import (
    AUGMENTED,
    CALL,
    CONTEXT,
    NEW,
    OWNER,
    WRITABLE,
    NotRepeatable,
    compiled_again,
)

T = TypeVar("T")

_PURE_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "callable", "complex", "dict", "divmod", "enumerate", "filter", "float",
     "format", "frozenset", "getattr", "hasattr", "hash", "id", "int", "isinstance", "issubclass", "len", "list",
     "map", "max", "min", "pow", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum",
     "tuple", "type", "zip"}
)  # fmt: skip
_LEFT_OUT = frozenset({"print"})
_PURE_LIBRARIES = frozenset({"math", "operator", "functools", "itertools", "numpy", "einops", "contextlib", "cmath"})
_IMPURE_TORCH = (
    "torch.optim", "torch.distributed", "torch.utils.data", "torch.utils.tensorboard", "torch.nn.init", "torch.random",
    "torch.serialization", "torch.hub", "torch.onnx", "torch.jit", "torch.multiprocessing", "torch.profiler",
)  # fmt: skip
_PURE_CONTEXTS = ("torch", "contextlib", "warnings", "numpy")
_CONTEXT_DECORATORS = ("torch.utils._contextlib", "torch.amp.autocast_mode", "nantrap.launch.calls")
_TRANSFORMS = ("torch._functorch.", "torch.func")
_IMPURE_NAMES = frozenset(
    {"backward", "save", "load", "manual_seed", "seed", "register_hook", "register_backward_hook",
     "register_forward_hook", "step", "zero_grad", "load_state_dict", "register_buffer", "register_parameter",
     "add_module", "retain_grad", "share_memory_", "set_", "numpy", "apply_", "map_", "requires_grad_", "compile"}
)  # fmt: skip
_READING = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
     "named_children", "state_dict"}
)  # fmt: skip
_CONTAINERS = (list, dict, set, collections.deque)
_GROWING = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft", "clear", "pop"})
_MOST_BUFFER_BYTES = 64 * 2**20


class Kept(NamedTuple):
    """A number that an object keeps in an attribute, or the state of a generator, which has no name."""

    owner: Any
    name: str
    value: Any

    def now(self) -> Kept:
        """What is kept there at this moment."""
        return self._replace(value=vars(self.owner)[self.name] if self.name else self.owner.get_state())

    def restore(self) -> None:
        """Restore the value."""
        if self.name:
            vars(self.owner)[self.name] = self.value
        else:
            self.owner.set_state(self.value)

    def before(self, left: Any) -> Kept | None:
        """What was kept before the step, if each run changes it by as much as the one that led from here to `left`;
        `None` if nothing changed."""
        if self.name:
            left = left if isinstance(left, (int, float)) else math.nan
            return None if left == self.value else self._replace(value=self.value - (left - self.value))
        if torch.equal(left, self.value):
            return None
        earlier = rewound(self.value, left)
        return self if earlier is None else self._replace(value=earlier)


def _plain_call(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return module(*args, **kwargs)


class Guarded:
    """Runs code of the user's again. Holds what was made during the run, and what has to be restored after it.

    Args:
        root: the model.
        call_model: calls the model, or a part of it, as the step did; by default with nothing but its arguments.
        restored: what the code may write, because it is restored afterwards.
        begun: what objects of the program kept when the step began, if it is not what they keep now.
    """

    def __init__(
        self,
        root: nn.Module,
        call_model: Callable[..., Any] = _plain_call,
        *,
        restored: Iterable[Tensor] = (),
        begun: Sequence[Kept] = (),
    ) -> None:
        self._parts = {id(module) for module in root.modules()}
        self._call_model = call_model
        self._functions: dict[types.FunctionType, Callable[..., Any]] = {}
        self._made: dict[int, Any] = {}
        self._buffers: dict[tuple[int, str], tuple[nn.Module, Tensor]] = {}
        self._fresh = _OnlyFresh(restored)
        self._begun = begun
        self._kept: dict[tuple[int, str], Kept] = {}
        self.before: list[Kept] = []
        """Of what the last run left otherwise than it found it: what it was before the step, if each run changes it by
        as much."""

    def copied(self, value: Any) -> Any:
        """A dictionary that the code may change: `inputs.pop("labels")`. Other values as they are."""
        return self._new(dict(value)) if isinstance(value, dict) else value

    def run(self, code: types.CodeType, names: dict[str, Any]) -> dict[str, Any]:
        """Execute compiled statements with these names, and return all names afterwards."""
        names = {**names, **self._helpers()}
        with self._running():
            exec(code, names)
        return names

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of a function of the program."""
        with self._running():
            return self._call(function, *args, **kwargs)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """What the program keeps is as it was before the step, and afterwards as it was found."""
        try:
            for kept in self._begun:
                self._note(kept.now())
                kept.restore()
            with self._fresh:
                yield
        finally:
            self.before[:] = filter(None, [found.before(found.now().value) for found in self._kept.values()])
            for found in self._kept.values():
                found.restore()
            self._kept.clear()
            self._made.clear()
            for (_, name), (module, buffer) in self._buffers.items():
                setattr(module, name, buffer)
            self._buffers.clear()

    def _helpers(self) -> dict[str, Any]:
        """The checks by the names under which the rewritten code calls them."""
        return {
            CALL: self._call,
            NEW: self._new,
            WRITABLE: self._writable,
            CONTEXT: _context,
            AUGMENTED: self._augmented,
            OWNER: self._owner,
        }

    # ---- what the compiled code calls

    def _call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """The result of a call, if it has no side effect that stays; raises `NotRepeatable` for any other."""
        if isinstance(function, nn.Module):
            return self._call_module(function, args, kwargs)
        if isinstance(function, functools.partial):
            return self._call(function.func, *function.args, *args, **{**function.keywords, **kwargs})
        if _is_users(method := inspect.getattr_static(type(function), "__call__", None)):  # an object, but no module
            return self._call(types.MethodType(method, function), *args, **kwargs)
        args = tuple(map(self._argument, args))
        kwargs = {key: self._argument(value) for key, value in kwargs.items()}
        name = str(getattr(function, "__name__", ""))
        owner = getattr(function, "__self__", None)
        inner = function.__func__ if isinstance(function, types.MethodType) else function
        if self._is_left_out(function, name, owner) or _only_logs(inner, name):
            return None
        if isinstance(inner, CACHED):  # what it would give is computed again
            return self._call(inner.__wrapped__, *(() if inner is function else (owner,)), *args, **kwargs)
        if _is_users(inner):
            guarded = self.guard(inner)
            return guarded(owner, *args, **kwargs) if inner is not function else guarded(*args, **kwargs)
        if self._may_write(function, name, owner):
            return function(*args, **kwargs)
        if not _is_transform(function) and not _is_pure(function, name, owner):
            raise NotRepeatable(f"a call of {name or type(function).__name__}")
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator):
                self._note(Kept(value, "", value.get_state()))
        return self._new(function(*args, **kwargs))

    def _is_left_out(self, function: Any, name: str, owner: Any) -> bool:
        """Whether a call is skipped: it prints, or lets a container grow that existed before the run."""
        prints = name in _LEFT_OUT and function is getattr(builtins, name)
        return prints or (_grows(function, name, owner) and id(owner) not in self._made)

    def _may_write(self, function: Any, name: str, owner: Any) -> bool:
        """Whether a call writes only into what was made during the run, or into what is restored after the step."""
        if isinstance(owner, nn.Module):
            return name in ("train", "eval") and id(owner) in self._parts
        if isinstance(owner, Tensor):
            return name == "requires_grad_" and (owner.requires_grad or self._fresh.made(owner))
        return _grows(function, name, owner)

    def _argument(self, value: Any) -> Any:
        """A function of the user's that is passed to another one is guarded as well."""
        return self.guard(value) if _is_users(value) else value

    def _call_module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call the model as it was called, a module of torch as it is, and a module of the user's with every call
        checked.
        """
        if _package(type(module)) == "torchmetrics":
            return None  # it adds to its state, and a loss does not depend on it
        if id(module) in self._parts or hasattr(module, "_orig_mod") or _is_wrapper(module, self._parts):
            with self._fresh.resting():
                return self._call_model(module, args, kwargs)
        own = [part for part in module.modules() if not type(part).__module__.startswith("torch.")]
        if not own:
            self._keep_buffers(module)
            with self._fresh.resting():
                return module(*args, **kwargs)
        forward: Any = getattr(type(module), "forward", None)  # none in a TorchScript module
        if module not in own or not isinstance(forward, types.FunctionType):
            raise NotRepeatable(f"a call of {type(module).__name__}")
        self._keep_buffers(module)  # a running average that the loss itself keeps
        return self.guard(forward)(module, *args, **kwargs)

    def _keep_buffers(self, module: nn.Module) -> None:
        """Copies take the place of the buffers during the run: they may be written, and a graph may hold them."""
        found = [
            (part, name, buffer) for part in module.modules() for name, buffer in part.named_buffers(recurse=False)
        ]
        new = [(part, name, buffer) for part, name, buffer in found if (id(part), name) not in self._buffers]
        if sum(size_in_bytes(buffer) for _, _, buffer in new) > _MOST_BUFFER_BYTES:
            raise NotRepeatable(f"the buffers of {type(module).__name__}")
        for part, name, buffer in new:
            self._buffers[id(part), name] = part, buffer
            setattr(part, name, buffer.detach().clone())

    def _new(self, value: T) -> T:
        if isinstance(value, _CONTAINERS):
            self._made[id(value)] = value
        return value

    def _writable(self, value: Any) -> Any:
        """What an item is assigned to: a tensor (its memory is checked when written), or a container made here."""
        if isinstance(value, Tensor) or id(value) in self._made:
            return value
        return {} if isinstance(value, dict) else _refuse(value)

    def _owner(self, value: Any, name: str) -> Any:
        """What an attribute is assigned to: a module with such a buffer, or an object that keeps a number there."""
        if isinstance(value, nn.Module) and name in dict(value.named_buffers(recurse=False)):
            if id(value) not in self._parts:  # those of the model are restored after the step
                self._keep_buffers(value)
            return value
        kept = getattr(value, "__dict__", {}).get(name)
        is_number = isinstance(kept, (int, float)) and not isinstance(kept, bool) and math.isfinite(kept)
        if not is_number or isinstance(value, (Tensor, type, types.ModuleType)) or hasattr(type(value), name):
            return _refuse(value)
        self._note(Kept(value, name, kept))
        return value

    def _note(self, kept: Kept) -> None:
        """Remember what is there before the run changes it."""
        self._kept.setdefault((id(kept.owner), kept.name), kept)

    def _augmented(self, operation: str, target: Any, value: Any) -> Any:
        in_place = isinstance(target, Tensor) or id(target) in self._made
        name = f"i{operation.rstrip('_')}" if in_place else operation
        return self._new(getattr(operator, name)(target, value))

    # ---- functions

    def guard(self, function: types.FunctionType) -> Callable[..., Any]:
        """Compiles a function again with every call checked."""
        if CALL in function.__globals__:
            return function
        if function not in self._functions:
            if _is_around_users(function):  # the same function of torch's, around the guarded one
                closure = tuple(
                    types.CellType(self._argument(cell.cell_contents)) for cell in function.__closure__ or ()
                )
                guarded = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)
                self._functions[function] = guarded
            else:
                self._functions[function] = compiled_again(function, self._helpers())
        return self._functions[function]


class _OnlyFresh(DispatchMode):
    """Allows writes only into memory that was made while it is active, and into that of some tensors."""

    def __init__(self, restored: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = Memory()
        self._made = set(map(self._memory.key, restored))
        self._rests = 0

    def made(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor was made during the run."""
        return self._memory.key(tensor) in self._made

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """The model's own code, whose state is restored by other means."""
        self._rests += 1
        try:
            yield
        finally:
            self._rests -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        if schema.is_mutable and not self._rests:
            for value, argument in _given(func, args, kwargs):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in tensors_in(value):
                        if self._memory.key(tensor) not in self._made:
                            raise NotRepeatable(f"{func} writes into memory that existed before")
        result = func(*args, **kwargs)
        if all(each.alias_info is None for each in schema.returns):
            self._made |= {self._memory.key(tensor) for tensor in tensors_in(result)}
        return result


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for position, argument in enumerate(schema_of(func).arguments):
        if position < len(args):
            yield args[position], argument
        elif argument.name in kwargs:
            yield kwargs[argument.name], argument


# ---- what may be called


def _refuse(value: Any) -> Any:
    raise NotRepeatable(f"a write into {type(value).__name__}")


def _context(manager: T) -> T:
    if (type(manager).__module__ or "").partition(".")[0] not in _PURE_CONTEXTS:
        raise NotRepeatable(f"the context {type(manager).__name__}")
    return manager


_LOGGING = frozenset({"log", "log_dict", "print", "log_metrics"})


def _only_logs(function: Any, name: str) -> bool:
    """A function of Lightning, or of its adapter, that records a value; and what adds to a metric."""
    package = _package(function)
    if package in ("lightning", "pytorch_lightning") or str(function.__module__) == "nantrap.lightning":
        return name in _LOGGING
    return package == "torchmetrics" and name in ("update", "reset")


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "").partition(".")[0]


def _is_users(function: Any) -> TypeGuard[types.FunctionType]:
    """Whether this is a function of the user's, also under `torch.no_grad()` and the like as decorators: not of torch,
    nor of one of the libraries whose functions are pure."""
    if not isinstance(function, types.FunctionType):
        return False
    if not is_user_code(function.__code__):
        return _is_around_users(function)
    return _package(function) not in _PURE_LIBRARIES


def _is_around_users(function: types.FunctionType) -> bool:
    """Whether this is what a context of torch's made of a function of the user's, as a decorator; `nantrap run` watches
    what that gives."""
    made_there = function.__globals__.get("__name__") in _CONTEXT_DECORATORS
    return made_there and _is_users(getattr(function, "__wrapped__", None))


def _grows(function: Any, name: str, owner: Any) -> bool:
    """Whether a method of a container changes what it holds."""
    return isinstance(function, type(print)) and isinstance(owner, _CONTAINERS) and name in _GROWING


def _is_wrapper(module: nn.Module, parts: set[int]) -> bool:
    inner = getattr(module, "module", None)
    return isinstance(inner, nn.Module) and id(inner) in parts


def _is_transform(function: Any) -> bool:
    """Whether a function is what `torch.func.grad`, `vmap` and their kind made of one whose calls are checked.

    It bears the name and the module of that function; its own code is torch's.
    """
    while isinstance(function, types.FunctionType) and function.__globals__.get("__name__", "").startswith(_TRANSFORMS):
        function = getattr(function, "__wrapped__", None)
        if isinstance(function, types.FunctionType) and CALL in function.__globals__:
            return True
    return False


def _is_pure(function: Any, name: str, owner: Any) -> bool:
    """Whether a function is known to change nothing outside its result."""
    if name in _IMPURE_NAMES:
        return False
    if isinstance(owner, Tensor) or (name in _PURE_BUILTINS and function is getattr(builtins, name, None)):
        return True
    if isinstance(owner, (int, float, str, tuple, torch.Size)) or (
        isinstance(owner, _CONTAINERS) and name not in _GROWING
    ):
        return name not in ("sort", "reverse", "remove", "popitem", "popleft")
    if owner is PYTHON_GENERATOR:
        return name not in ("seed", "setstate")
    if isinstance(owner, nn.Module) and name in _READING:
        return True
    return _is_pure_there(_module_of(function, owner), name)


def _module_of(function: Any, owner: Any) -> str:
    """The Python module that a function comes from; for a method the class of its object decides."""
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        return str(type(owner).__module__)
    return str(getattr(function, "__module__", None) or type(owner).__module__ or "")


def _is_pure_there(module: str, name: str) -> bool:
    """Whether the functions of a Python module are known to change nothing outside their results."""
    package = module.partition(".")[0]
    if package == "nantrap":
        return module.startswith("nantrap.ops") or name == "probe"
    if package == "torch":
        return not module.startswith(_IMPURE_TORCH) and not name.startswith(("set_", "register_", "load_", "save"))
    return package in _PURE_LIBRARIES and not module.startswith("numpy.random")
