"""The user's own functions run again without their side effects.

In the two-line form the guard gets no function that computes the loss. Its source lines are known, though, and most
loss functions are plain arithmetic on tensors. Here such code is compiled again from its source, with its own file name
and line numbers, and every call in it is checked before it is made:

-   functions and methods of torch, and pure functions of Python and a few libraries, are called as they are;
-   functions of the user's are compiled in the same way, and so are the `forward` methods of modules outside the model;
-   the model itself is called as it was called;
-   printing and growing a list that existed before are left out;
-   everything else (an attribute that is written, an iterator that is advanced, a file, an unknown library) ends the
    attempt with `NotRepeatable`, and nothing has happened.

An in-place write is allowed only into memory that was made during the same run (`_OnlyFresh`). A loss module with
buffers gets copies of them for the run.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import collections
import contextlib
import functools
import linecache
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nantrap.locate.python_private import PYTHON_GENERATOR
from nantrap.locate.source import is_user_code
from nantrap.locate.storage import Memory, tensors_in
from nantrap.locate.torch_private import DispatchMode, schema_of

T = TypeVar("T")

_CALL, _NEW, _WRITABLE, _CONTEXT, _AUGMENTED, _REFUSE = (
    f"__nantrap_{name}__" for name in ("call", "new", "writable", "context", "augmented", "refuse")
)
_OUTER = "__nantrap_outer__"
_FEATURES = functools.reduce(operator.or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names))

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
_OPERATIONS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitOr: "or_", ast.BitAnd: "and_", ast.BitXor: "xor",
}  # fmt: skip
_MOST_BUFFER_BYTES = 64 * 2**20


class NotRepeatable(BaseException):
    """Code that cannot be run again without side effects, and why. `except Exception` does not catch it."""


class Guarded:
    """Runs code of the user's again. Holds what was made during the run, and what has to be put back after it.

    Args:
        root: the model.
        call_model: calls the model, or a part of it, as the step did.
    """

    def __init__(self, root: nn.Module, call_model: Callable[..., Any]) -> None:
        self._parts = {id(module) for module in root.modules()}
        self._call_model = call_model
        self._functions: dict[types.FunctionType, Callable[..., Any]] = {}
        self._made: dict[int, Any] = {}
        self._buffers: dict[tuple[int, str], tuple[nn.Module, Tensor]] = {}
        self._fresh = _OnlyFresh()

    def run(self, code: types.CodeType, names: dict[str, Any]) -> dict[str, Any]:
        """Execute compiled statements with these names, and return all names afterwards."""
        names = {**names, **self._helpers()}
        try:
            with self._fresh:
                exec(code, names)
        finally:
            self._made.clear()
            for (_, name), (module, buffer) in self._buffers.items():
                setattr(module, name, buffer)
            self._buffers.clear()
        return names

    def _helpers(self) -> dict[str, Any]:
        return {
            _CALL: self._call,
            _NEW: self._new,
            _WRITABLE: self._writable,
            _CONTEXT: _context,
            _AUGMENTED: self._augmented,
            _REFUSE: _refuse,
        }

    # ---- what the compiled code calls

    def _call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(function, nn.Module):
            return self._call_module(function, args, kwargs)
        if isinstance(function, functools.partial):
            return self._call(function.func, *function.args, *args, **{**function.keywords, **kwargs})
        args = tuple(map(self._argument, args))
        kwargs = {key: self._argument(value) for key, value in kwargs.items()}
        name = str(getattr(function, "__name__", ""))
        owner = getattr(function, "__self__", None)
        if name in _LEFT_OUT and function is getattr(builtins, name):
            return None
        if isinstance(function, type(print)) and isinstance(owner, _CONTAINERS) and name in _GROWING:
            return function(*args, **kwargs) if id(owner) in self._made else None
        inner = function.__func__ if isinstance(function, types.MethodType) else function
        if isinstance(inner, types.FunctionType) and is_user_code(inner.__code__) and not _is_library(inner):
            guarded = self.guard(inner)
            return guarded(owner, *args, **kwargs) if inner is not function else guarded(*args, **kwargs)
        if isinstance(owner, nn.Module) and name in ("train", "eval") and id(owner) in self._parts:
            return function(*args, **kwargs)  # put back with the rest of the step
        if name == "requires_grad_" and isinstance(owner, Tensor) and (owner.requires_grad or self._fresh.made(owner)):
            return function(*args, **kwargs)
        drawn = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        if drawn or not _is_pure(function, name, owner):
            raise NotRepeatable(f"a call of {name or type(function).__name__}")
        return self._new(function(*args, **kwargs))

    def _argument(self, value: Any) -> Any:
        """A function of the user's that is handed to another one is guarded as well."""
        if isinstance(value, types.FunctionType) and is_user_code(value.__code__) and not _is_library(value):
            return self.guard(value)
        return value

    def _call_module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if id(module) in self._parts or hasattr(module, "_orig_mod") or _is_wrapper(module, self._parts):
            with self._fresh.resting():
                return self._call_model(module, args, kwargs)
        own = [part for part in module.modules() if not type(part).__module__.startswith("torch.")]
        if not own:
            self._keep_buffers(module)
            with self._fresh.resting():
                return module(*args, **kwargs)
        forward: Any = type(module).forward
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
        if sum(buffer.nbytes for _, _, buffer in new) > _MOST_BUFFER_BYTES:
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

    def _augmented(self, operation: str, target: Any, value: Any) -> Any:
        in_place = isinstance(target, Tensor) or id(target) in self._made
        name = f"i{operation.rstrip('_')}" if in_place else operation
        return self._new(getattr(operator, name)(target, value))

    # ---- functions

    def guard(self, function: types.FunctionType) -> Callable[..., Any]:
        """The same function, compiled again with every call checked."""
        if _CALL in function.__globals__:
            return function
        if function not in self._functions:
            self._functions[function] = self._compiled(function)
        return self._functions[function]

    def _compiled(self, function: types.FunctionType) -> Callable[..., Any]:
        code = function.__code__
        if hasattr(function, "__wrapped__"):
            raise NotRepeatable(f"a decorator of {function.__name__}")
        cells = [_content(cell) for cell in function.__closure__ or ()]
        node = guarded_tree(definition_of(code))
        result: ast.expr
        if isinstance(node, ast.Lambda):
            node.args.defaults, node.args.kw_defaults = _placeholders(node.args)
            body: list[ast.stmt] = [ast.Return(node)]
        else:
            node.decorator_list, node.returns = [], None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            node.args.defaults, node.args.kw_defaults = _placeholders(node.args)
            result = ast.Name(node.name, ast.Load())
            body = [node, ast.Return(result)]
        arguments = ast.arguments(
            posonlyargs=[], args=[ast.arg(n) for n in code.co_freevars], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        outer = ast.copy_location(ast.FunctionDef(_OUTER, arguments, body, []), node)
        if sys.version_info >= (3, 12):
            outer.type_params = []
        names = {**function.__globals__, **self._helpers()}
        exec(compiled([outer], code), names)
        made = names[_OUTER](*cells)
        original = _qualified(code)
        renamed = types.FunctionType(
            _renamed(made.__code__, made.__code__.co_name, original), names, function.__name__, None, made.__closure__
        )
        renamed.__defaults__, renamed.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return renamed


class _OnlyFresh(DispatchMode):
    """Allows writes only into memory that was made while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = Memory()
        self._made: set[int] = set()
        self._rests = 0

    def made(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor was made during the run."""
        return self._memory.key(tensor) in self._made

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """The model's own code, whose state is put back by other means."""
        self._rests += 1
        try:
            yield
        finally:
            self._rests -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if schema_of(func).is_mutable and not self._rests:
            for value, argument in _given(func, args, kwargs):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in tensors_in(value):
                        if self._memory.key(tensor) not in self._made:
                            raise NotRepeatable(f"{func} writes into memory that existed before")
        before = {self._memory.key(tensor) for tensor in tensors_in((args, kwargs))}
        result = func(*args, **kwargs)
        self._made |= {self._memory.key(tensor) for tensor in tensors_in(result)} - before
        return result


def _given(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for position, argument in enumerate(schema_of(func).arguments):
        if position < len(args):
            yield args[position], argument
        elif argument.name in kwargs:
            yield kwargs[argument.name], argument


# ---- from source to code


def compiled(statements: list[ast.stmt], like: types.CodeType) -> types.CodeType:
    """Statements compiled as if they stood where `like` stands."""
    module = ast.fix_missing_locations(ast.Module(statements, type_ignores=[]))
    try:
        code = compile(module, like.co_filename, "exec", flags=like.co_flags & _FEATURES, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise NotRepeatable(f"source that does not compile by itself ({error})") from error
    return _renamed(code, "<module>", _qualified(like))


Function = ast.FunctionDef | ast.Lambda


def definition_of(code: types.CodeType) -> Function:
    """The source of a function."""
    found = [
        node
        for node in ast.walk(tree_of(code.co_filename))
        if isinstance(node, (ast.FunctionDef, ast.Lambda))
        and getattr(node, "name", "<lambda>") == code.co_name
        and min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) == code.co_firstlineno
    ]
    if len(found) != 1:
        raise NotRepeatable(f"no source for {code.co_name}")
    return found[0]


@functools.lru_cache(maxsize=64)
def _parsed(filename: str, lines: int) -> ast.Module:
    return ast.parse("".join(linecache.getlines(filename)))


def tree_of(filename: str) -> ast.Module:
    """The parsed source of a file. Not to be changed: it is kept."""
    try:
        return _parsed(filename, len(linecache.getlines(filename)))
    except (SyntaxError, ValueError) as error:  # a notebook cell with magics, a generated file
        raise NotRepeatable(f"no source for {filename}") from error


NodeT = TypeVar("NodeT", bound=ast.AST)


def guarded_tree(node: NodeT) -> NodeT:
    """A copy in which every call is made through `Guarded`."""
    changed: NodeT = _Guarding().visit(_copied(node))
    return changed


def _copied(node: Any) -> Any:
    """A copy of a syntax tree: its fields and positions alone.

    Other tools (IPython's tracebacks) hang their own attributes on nodes, and all trees of a process share the node of
    `Load`. A deep copy follows such an attribute into the trees of other files.
    """
    if isinstance(node, list):
        return [_copied(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: _copied(value) for name, value in ast.iter_fields(node)}
    return ast.copy_location(type(node)(**fields), node)


class _Guarding(ast.NodeTransformer):
    def _through(self, helper: str, node: Any, *arguments: ast.expr) -> ast.Call:
        call = ast.Call(ast.Name(helper, ast.Load()), list(arguments), [])
        return ast.copy_location(call, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        call = ast.Call(ast.Name(_CALL, ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(call, node)

    def _literal(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            return node  # type: ignore[no-any-return]
        return self._through(_NEW, node, node)

    visit_List = visit_Dict = visit_Set = visit_ListComp = visit_DictComp = visit_SetComp = _literal

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = self._through(_WRITABLE, node, node.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = self._through(_REFUSE, node, node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        name = _OPERATIONS.get(type(node.op))
        if not isinstance(node.target, ast.Name) or name is None:
            return node
        target = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = self._through(_AUGMENTED, node, ast.Constant(name), target, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        for item in node.items:
            item.context_expr = self._through(_CONTEXT, item.context_expr, item.context_expr)
        return node

    def _impossible(self, node: ast.AST) -> ast.AST:
        raise NotRepeatable(f"a statement of the kind {type(node).__name__}")

    visit_Global = visit_Nonlocal = visit_ClassDef = visit_Yield = visit_YieldFrom = visit_Await = _impossible
    visit_AsyncFor = visit_AsyncWith = visit_AsyncFunctionDef = visit_Starred_store = _impossible


def _placeholders(arguments: ast.arguments) -> tuple[list[ast.expr], list[ast.expr | None]]:
    """Defaults that are put in place afterwards: the original ones were computed when the function was defined."""
    return (
        [ast.Constant(None) for _ in arguments.defaults],
        [None if default is None else ast.Constant(None) for default in arguments.kw_defaults],
    )


def _qualified(code: types.CodeType) -> str:
    return code.co_qualname if sys.version_info >= (3, 11) else code.co_name


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """The code under the name that it has in the user's program, and what is defined inside it too."""
    inner = tuple(_renamed(each, old, new) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    if sys.version_info < (3, 11):
        return code.replace(co_consts=inner, co_name=new if code.co_name == old else code.co_name)
    else:  # noqa: RET505 - mypy takes the version's branch only in this form
        name = code.co_qualname.removeprefix(f"{_OUTER}.<locals>.")
        name = new if name == old else new + name.removeprefix(old) if name.startswith(f"{old}.") else name
        simple = new.rpartition(".")[2] if code.co_name == old else code.co_name
        return code.replace(co_consts=inner, co_qualname=name, co_name=simple)


# ---- what may be called


def _refuse(value: Any) -> Any:
    raise NotRepeatable(f"a write into {type(value).__name__}")


def _context(manager: T) -> T:
    if (type(manager).__module__ or "").partition(".")[0] not in ("torch", "contextlib", "warnings"):
        raise NotRepeatable(f"the context {type(manager).__name__}")
    return manager


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise NotRepeatable("a name that nothing was assigned to") from None


def _is_library(function: types.FunctionType) -> bool:
    """A function of one of the libraries whose functions are pure."""
    return (function.__module__ or "").partition(".")[0] in _PURE_LIBRARIES


def _is_wrapper(module: nn.Module, parts: set[int]) -> bool:
    inner = getattr(module, "module", None)
    return isinstance(inner, nn.Module) and id(inner) in parts


def _is_pure(function: Any, name: str, owner: Any) -> bool:
    if name in _IMPURE_NAMES:
        return False
    if isinstance(owner, Tensor):
        return True
    if isinstance(function, type) and function.__name__ in _PURE_BUILTINS and function.__module__ == "builtins":
        return True
    if name in _PURE_BUILTINS and function is getattr(builtins, name, None):
        return True
    if isinstance(owner, (int, float, str, tuple, torch.Size)) or (
        isinstance(owner, _CONTAINERS) and name not in _GROWING
    ):
        return name not in ("sort", "reverse", "remove", "popitem", "popleft")
    if owner is PYTHON_GENERATOR:
        return name not in ("seed", "setstate")
    if isinstance(owner, nn.Module) and name in _READING:
        return True
    module = str(getattr(function, "__module__", None) or type(owner).__module__ or "")
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        module = type(owner).__module__  # a method: whose object it is decides
    package = module.partition(".")[0]
    if package == "nantrap":
        return module.startswith("nantrap.ops") or name == "probe"
    if package == "torch":
        return not module.startswith(_IMPURE_TORCH) and not name.startswith(("set_", "register_", "load_", "save"))
    return package in _PURE_LIBRARIES and not module.startswith("numpy.random")
