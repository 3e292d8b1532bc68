"""What a pickle would do when it is loaded, and whether a checkpoint may do it.

`torch.load(weights_only=False)` imports every global a pickle names and calls whatever it asks to call. Four answers:

data    an exact pair of module and name, known to build data and nothing else, called with arguments that fit
made    a class of a user's own code: an instance is made and filled. A warning: it needs that code, and trusts it
named   something unknown that is only named, never called. A note
run     everything else that would be called, and what a checkpoint never needs to name. An error

A name is judged by its module and its whole qualified name: `random._os.system` is not `random`. Names that pass
through something that is not a class (`dataclasses.builtins.eval`) are always errors.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from nantrap.checkpoints.audit.known_names import (
    CALLABLE_SCALARS,
    CLASSES,
    FUNCTIONS,
    GADGETS,
    HARMLESS_BUILTINS,
    HARMLESS_MODULES,
    LOADER,
    LOADER_NAME,
    MODULES_THAT_RUN,
    RUNS,
    VALUES,
)  # fmt: skip
from nantrap.checkpoints.audit.pickles import GETATTR, Call, Name, Pickle
from nantrap.checkpoints.audit.verdict import Problem
from nantrap.incident.wording import escaped


class Imports:
    """What the pickles of a file would run, make and name, by full name, and how each of the first kind was judged."""

    __slots__ = ("made", "named", "run")

    def __init__(self, run: Mapping[str, str], made: tuple[str, ...] = (), named: tuple[str, ...] = ()) -> None:
        self.run = run
        self.made = made
        self.named = named

    def __add__(self, other: Imports) -> Imports:
        """Both together, each name once."""
        return Imports(
            {**self.run, **other.run},
            tuple(dict.fromkeys((*self.made, *other.made))),
            tuple(dict.fromkeys((*self.named, *other.named))),
        )


NOTHING: Final = Imports({})


def judge(pickle: Pickle, *, loads: Callable[[Call], bool] = lambda call: False) -> Imports:
    """What loading this pickle would do.

    Args:
        pickle: as `read_pickle` gave it.
        loads: whether a call of `torch.storage._load_from_bytes` was followed into its bytes and judged there.
    """
    run: dict[str, str] = {f"({offence})": offence for offence in pickle.offences}
    made: dict[str, None] = {}
    called: set[Name] = set()
    filled = Counter(id(target) for target, _ in pickle.builds)
    for call in pickle.calls:
        if filled[id(call.function)] > 1:  # the result may be something else than what was called
            run.setdefault("(the result of a call)", "is called, and it is not known what it is")
        if call.is_call_of(LOADER) and loads(call):
            called.add(LOADER_NAME)
            continue
        name, reason = _judge_call(call)
        if isinstance(call.function, Name):
            called.add(call.function)
        elif (new := _new_with_keywords(call)) is not None and isinstance(new.function, Name):
            called.add(Name(new.function.module, f"{new.function.qualname}.__new__"))
        if LOADER_NAME in call.arguments:
            run.setdefault(LOADER, "is kept to be called")
        if reason:
            run.setdefault(name, reason)
        elif reason is None:
            made[name] = None
    for target, state in pickle.builds:
        offence = _judge_state(target, state)
        if offence is not None:
            run.setdefault(*offence)
    named: dict[str, None] = {}
    for one in pickle.names:
        verdict = _judge_name(one)
        if verdict == "run" and one not in called:
            run.setdefault(one.full, "is no part of a checkpoint")
        elif verdict == "named" and one.full not in made and one not in called:
            named[one.full] = None
    return Imports(run, tuple(name for name in made if name not in run), tuple(named))


def problems_of_imports(imports: Imports) -> tuple[Problem, ...]:
    """At most one error, one warning and one note."""
    problems = []
    if imports.run:
        names = tuple(imports.run)
        text = f"loading it would run {_join(names)}; it was read without running anything"
        problems.append(Problem("NT910", text, imports=names))
    if imports.made:
        text = f"loading it needs the code of {_join(imports.made)}; its tensors were read without it"
        problems.append(Problem("NT910", text, severity="warning", imports=imports.made))
    if imports.named:
        text = f"the pickle names {_join(imports.named)} and calls none of them"
        problems.append(Problem("NT910", text, severity="note", imports=imports.named))
    return tuple(problems)


def _join(names: tuple[str, ...], shown: int = 4) -> str:
    text = ", ".join(escaped(name, most=120) for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"


_REBUILD: Final = frozenset(name for name in FUNCTIONS if name.module == "torch._utils")
_NUMPY_CORE = ("numpy.core", "numpy._core")


def _is_type(value: object) -> bool:
    """Whether an argument is a type or constant that data name."""
    return isinstance(value, Name) and (value in VALUES or value in CLASSES)


def _is_class(value: object) -> bool:
    """Whether an argument is a class, known or not, and no function."""
    return _is_type(value) or (isinstance(value, Name) and _judge_name(value) == "named" and _looks_like_a_class(value))


def _are_plain(call: Call, *, types: bool = False) -> bool:
    """Whether no argument is a function, or what an unpickler would make into one."""
    for argument in call.arguments:
        if isinstance(argument, Name) and not (types and _is_type(argument)):
            return False
        if isinstance(argument, Call) and _makes_a_function(argument):
            return False
    return True


def _makes_a_function(call: Call) -> bool:
    return call.is_call_of("builtins.getattr", "functools.partial", "operator.attrgetter", "operator.methodcaller")


# ---- calls that need a closer check: each returns whether the arguments are those that a pickler writes


def _reconstructs(call: Call) -> str | None:
    """`copyreg._reconstructor(cls, base, state)`: how protocols 0 and 1 make an instance."""
    if len(call.arguments) != 3 or not isinstance(call.arguments[0], Name):
        return "is called with arguments that no pickler writes"
    base = call.arguments[1]
    if base not in _BASES:
        return "is called with arguments that no pickler writes"
    return _judge_call(Call(call.arguments[0], call.arguments[2:], "new"))[1]


def _makes_new(call: Call) -> str | None:
    """`copyreg.__newobj__(cls, *args)`."""
    if not call.arguments or not isinstance(call.arguments[0], Name):
        return "is called with arguments that no pickler writes"
    return _judge_call(Call(call.arguments[0], call.arguments[1:], "new"))[1]


def _rebuilds_from_type(call: Call) -> str | None:
    """`torch._tensor._rebuild_from_type_v2(function, type, arguments, state)` calls the function."""
    given = call.arguments
    if len(given) == 4 and given[0] in _REBUILD and _is_class(given[1]) and isinstance(given[2], tuple):
        inner = _judge_call(Call(given[0], given[2]))[1]
        return inner if inner else "" if _is_type(given[1]) else None
    return "is called with arguments that no pickler writes"


def _attribute(call: Call) -> str | None:
    """`getattr(object, "method")`: a bound method. Of a class, it was made into a dotted name already."""
    given = call.arguments
    fits = len(given) == 2 and isinstance(given[1], str) and re.fullmatch(r"(?!__)\w+", given[1]) is not None
    return "" if fits and not isinstance(given[0], Name) and not _is_function_call(given[0]) else _WRONG_ARGUMENTS


def _is_function_call(value: object) -> bool:
    return isinstance(value, Call) and _makes_a_function(value)


def _type_of(call: Call) -> str | None:
    """`type(None)`; with three arguments it makes a class, with the methods that the pickle gives."""
    given = call.arguments
    fits = len(given) == 1 and (given[0] is None or given[0] in (Name("builtins", "Ellipsis"), _NOT_IMPLEMENTED))
    return "" if fits else _WRONG_ARGUMENTS


def _subscript(call: Call) -> str | None:
    """`operator.getitem(typing.Union, (int, str))`."""
    given = call.arguments
    fits = len(given) == 2 and isinstance(given[0], Name) and given[0].module == "typing" and given[0] in VALUES
    return "" if fits and _are_types(given[1]) else _WRONG_ARGUMENTS


def _generic(call: Call) -> str | None:
    """`types.GenericAlias(list, (int,))`, and `functools.reduce(operator.or_, (int, str))` for `int | str`."""
    given = call.arguments
    first = given[0] if given else None
    fits = _is_class(first) or first in (Name("operator", "or_"), Name("_operator", "or_"))
    return "" if len(given) == 2 and fits and _are_types(given[1]) else _WRONG_ARGUMENTS


def _are_types(value: object, depth: int = 8) -> bool:
    if isinstance(value, (tuple, list)):
        return depth > 0 and all(_are_types(part, depth - 1) for part in value)
    return not isinstance(value, Name) or _is_class(value)


def _partial(call: Call) -> str | None:
    """`functools.partial(function)` keeps the function and calls nothing."""
    return "" if call.arguments else _WRONG_ARGUMENTS


def _array(call: Call) -> str | None:
    """`numpy._core.multiarray._reconstruct(numpy.ndarray, (0,), b"b")`."""
    first = call.arguments[0] if call.arguments else None
    return "" if isinstance(first, Name) and first in _ARRAYS else _WRONG_ARGUMENTS


def _python_array(call: Call) -> str | None:
    """`array.array("d", [1.0])`, and `array._array_reconstructor(array.array, "d", 15, b"...")`."""
    first = call.arguments[0] if call.arguments else None
    return "" if first == Name("array", "array") or (isinstance(first, str) and _are_plain(call)) else _WRONG_ARGUMENTS


def _ufunc(call: Call) -> str | None:
    """`numpy.core._ufunc_reconstruct(module, name)` imports the module."""
    given = call.arguments
    fits = len(given) == 2 and given[0] in ("numpy", *_NUMPY_CORE) and isinstance(given[1], str)
    return "" if fits else _WRONG_ARGUMENTS


def _generator(call: Call) -> str | None:
    """`numpy.random._pickle.__generator_ctor(name_or_class, constructor)` calls what it is given."""
    for argument in call.arguments:
        if isinstance(argument, Name) and not argument.module.startswith("numpy.random."):
            return _WRONG_ARGUMENTS
        if isinstance(argument, Name) and _judge_name(argument) == "run":
            return _WRONG_ARGUMENTS
    return "" if not any(_is_function_call(argument) for argument in call.arguments) else _WRONG_ARGUMENTS


def _iterates(call: Call) -> str | None:
    """`iter([...])`; with two arguments it would call the first."""
    fits = len(call.arguments) == 1 and isinstance(call.arguments[0], (list, tuple, dict, str, bytes))
    return "" if fits else _WRONG_ARGUMENTS


def _encodes(call: Call) -> str | None:
    """`_codecs.encode(text, "latin1")`, how protocol 2 writes bytes; other codecs unpack or import."""
    given = call.arguments
    fits = len(given) == 2 and isinstance(given[0], str) and given[1] in ("latin1", "latin-1")
    return "" if fits else _WRONG_ARGUMENTS


def _defaults(call: Call) -> str | None:
    """`collections.defaultdict(int)` keeps its factory; loading looks up no missing key."""
    return "" if len(call.arguments) == 1 or isinstance(call.arguments[1], (dict, list)) else _WRONG_ARGUMENTS


def _either(call: Call) -> str | None:
    """`operator.or_(Flag.A, Flag.B)`: how Python 3.11.2 writes a flag."""
    fits = all(
        isinstance(argument, int)
        or (isinstance(argument, Name) and _looks_like_a_class(argument) and "." in argument.qualname)
        or (isinstance(argument, Call) and not _makes_a_function(argument))
        for argument in call.arguments
    )
    return "" if fits and len(call.arguments) == 2 else _WRONG_ARGUMENTS


def _new_with_keywords(call: Call) -> Call | None:
    """`partial(cls.__new__, cls, a=1)()` as a `new` call of the class: protocols 2 and 3 write keywords so."""
    partial = call.function
    state = partial.state if isinstance(partial, Call) and partial.is_call_of("functools.partial") else None
    if call.arguments or not (
        isinstance(state, tuple) and len(state) == 4 and isinstance(state[1], tuple) and state[1]
    ):
        return None
    new, made = state[0], state[1][0]
    if isinstance(new, Name) and isinstance(made, Name) and new == Name(made.module, f"{made.qualname}.__new__"):
        keywords = state[2].values() if isinstance(state[2], dict) else ()
        return Call(made, (*state[1][1:], *keywords), "new")
    return None


def _index(call: Call) -> str | None:
    """`pandas.core.indexes.base._new_Index(class, values)`."""
    first = call.arguments[0] if call.arguments else None
    fits = isinstance(first, Name) and first.module.startswith("pandas.core.indexes.") and _looks_like_a_class(first)
    return None if fits else _WRONG_ARGUMENTS


_WRONG_ARGUMENTS = "is called with arguments that no pickler writes"
_BASES = frozenset(
    Name("builtins", kind) for kind in ("object", "dict", "list", "int", "float", "str", "tuple", "set", "bytes")
)
_NOT_IMPLEMENTED = Name("builtins", "NotImplemented")
_ARRAYS = frozenset(
    Name("numpy", kind) for kind in ("ndarray", "matrix", "recarray")
) | {Name("numpy.ma.core", "MaskedArray"), Name("numpy.ma", "MaskedArray"), Name("numpy.rec", "recarray")}  # fmt: skip

_CLOSER: Final[Mapping[Name, Callable[[Call], str | None]]] = {
    Name("copyreg", "_reconstructor"): _reconstructs,
    Name("copyreg", "__newobj__"): _makes_new,
    Name("torch._tensor", "_rebuild_from_type"): _rebuilds_from_type,
    Name("torch._tensor", "_rebuild_from_type_v2"): _rebuilds_from_type,
    GETATTR: _attribute,
    Name("builtins", "type"): _type_of,
    Name("operator", "getitem"): _subscript,
    Name("_operator", "getitem"): _subscript,
    Name("types", "GenericAlias"): _generic,
    Name("functools", "reduce"): _generic,
    Name("_functools", "reduce"): _generic,
    Name("operator", "or_"): _either,
    Name("_operator", "or_"): _either,
    Name("functools", "partial"): _partial,
    Name("array", "_array_reconstructor"): _python_array,
    Name("array", "array"): _python_array,
    Name("builtins", "iter"): _iterates,
    Name("_codecs", "encode"): _encodes,
    Name("collections", "defaultdict"): _defaults,
    Name("pandas.core.indexes.base", "_new_Index"): _index,
    **{
        Name("numpy.random._pickle", kind): _generator
        for kind in ("__generator_ctor", "__bit_generator_ctor", "__randomstate_ctor")
    },
    **{
        Name(f"{core}{module}", "_reconstruct"): _array
        for core in _NUMPY_CORE
        for module in (".multiarray", "._multiarray_umath")
    },
    Name("numpy.ma.core", "_mareconstruct"): _array,
    **{Name(core, "_ufunc_reconstruct"): _ufunc for core in _NUMPY_CORE},
}
"""Callables whose arguments decide. A check gives `""` (data), `None` (an unknown class) or why not."""

_NAMED_WITH_THEM: Final = frozenset((Name("builtins", "type"),)) | _ARRAYS


# ---- names


_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_CLASS_PART = re.compile(r"_*[A-Z]\w*")


def _looks_like_a_class(name: Name) -> bool:
    """Whether every part of the name is written as classes are: `Outer.Inner`."""
    return all(_CLASS_PART.fullmatch(part) for part in name.qualname.split("."))


def _is_below(module: str, known: frozenset[str]) -> bool:
    """Whether the module is one of these, or lies inside of one."""
    parts = module.split(".")
    return any(".".join(parts[: count + 1]) in known for count in range(len(parts)))


def _judge_name(name: Name) -> str:
    """`data`, `named` or `run`, for a global that is only named."""
    if name in VALUES or name in CLASSES or name in FUNCTIONS or name in _CLOSER or name in _NAMED_WITH_THEM:
        return "data"
    parts = name.qualname.split(".")
    if not _MODULE.fullmatch(name.module) or not all(part.isidentifier() for part in parts):
        return "run"
    first = Name(name.module, parts[0])
    if len(parts) == 2 and (first in CLASSES or first in VALUES) and not parts[1].startswith("__"):
        return "data"  # a member of an enum, a method of a known class
    if any(part.startswith("__") for part in parts[1:]) or not all(map(_CLASS_PART.fullmatch, parts[:-1])):
        return "run"  # it leaves the class for its module, or for what runs
    root = name.module.partition(".")[0]
    if name in RUNS or root in GADGETS:
        return "run"
    if root in ("torch", "numpy"):
        return "run" if _is_below(name.module, MODULES_THAT_RUN) else "named"
    if name.module == "builtins":
        return "named" if name.qualname in HARMLESS_BUILTINS else "run"
    if root in sys.stdlib_module_names:
        harmless = name.module in HARMLESS_MODULES and not parts[0].startswith("_")
        return "named" if harmless else "run"
    return "named"


_ENUMS = re.compile(r"(Strategy|Type|Names|Option|Mode|Backend|Environment)$")
"""The enums among the known classes of other packages: the only ones that a pickler calls with a value."""


def _judge_call(call: Call) -> tuple[str, str | None]:
    """The name of what is called, and `""` for data, `None` for an unknown class, or why it must not be called."""
    function = call.function
    if not isinstance(function, Name):
        made = _new_with_keywords(call)
        return _judge_call(made) if made else ("(the result of a call)", "is called, and it is not known what it is")
    closer = _CLOSER.get(function)
    if closer is not None:
        return function.full, closer(call)
    if function in FUNCTIONS:
        fits = call.how == "reduce" and (function in _REBUILD or _are_plain(call, types=True))
        return function.full, "" if fits else _WRONG_ARGUMENTS
    if function in CLASSES:
        if call.how == "new" or not call.arguments:
            return function.full, ""
        root = function.module.partition(".")[0]
        own = (
            root in ("torch", "numpy")
            or root in sys.stdlib_module_names
            or _ENUMS.search(function.qualname) is not None
        )
        return function.full, "" if own and _are_plain(call, types=True) else _WRONG_ARGUMENTS
    parts = function.qualname.split(".")
    if function in CALLABLE_SCALARS and _are_plain(call):
        return function.full, ""
    if len(parts) == 2 and Name(function.module, parts[0]) in CLASSES:
        return function.full, "is called"  # a method of a known class
    root = function.module.partition(".")[0]
    known = root in ("torch", "numpy", "builtins") or root in sys.stdlib_module_names
    if _judge_name(function) == "run" or known or not _looks_like_a_class(function):
        return function.full, "is called"
    if call.how == "reduce" and call.arguments and (not _are_plain(call, types=True) or _is_of_a_package(function)):
        return function.full, "is called"
    return function.full, None


def _is_of_a_package(name: Name) -> bool:
    """Whether the class belongs to an installed package and is no enum, by its source. Nothing is imported.

    The constructor of a user's own class is that user's code. One of a published package can be anything, and its name
    is public: there are packages with a class that runs its argument as a command.
    """
    root, *rest = name.module.split(".")
    for entry in sys.path:
        if "site-packages" not in entry and "dist-packages" not in entry:
            continue
        base = os.path.join(entry, root)
        if os.path.isdir(base) or os.path.isfile(f"{base}.py"):
            inner = os.path.join(base, *rest)
            return not any(
                _is_enum(path, name.qualname) for path in (f"{inner}.py", os.path.join(inner, "__init__.py"))
            )
    return False


def _is_enum(path: str, qualname: str) -> bool:
    try:
        if os.path.getsize(path) > 4 << 20:
            return False
        with open(path, encoding="utf-8") as file:
            body: Iterable[ast.stmt] = ast.parse(file.read()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    found: ast.ClassDef | None = None
    for part in qualname.split("."):
        found = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == part), None)
        if found is None:
            return False
        body = found.body
    assert found is not None
    bases = [base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in found.bases]
    return any(base.endswith(("Enum", "Flag")) for base in bases)


_HOOKS: Final = frozenset(("__setstate__", "append", "extend", "add", "__reduce__", "__reduce_ex__", "__class__"))


def _judge_state(target: object, state: object) -> tuple[str, str] | None:
    """What is wrong with giving this object that state. A global must not be changed, and no hook may be added."""
    if isinstance(target, Name):
        return target.full, "would be changed"
    if _is_function_call(target) and not (isinstance(target, Call) and target.is_call_of("functools.partial")):
        return "(the result of getattr)", "would be changed"
    if isinstance(target, Call) and target.is_call_of("logging.getLogger", "builtins.type", "operator.getitem"):
        return str(getattr(target.function, "full", "")), "would be changed"
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in parts:
        if isinstance(part, dict):
            for key in part:
                if isinstance(key, str) and key in _HOOKS and not isinstance(part[key], (str, int, float, type(None))):
                    return f"({key})", "would be set on an object, and called by the unpickler"
    return None
