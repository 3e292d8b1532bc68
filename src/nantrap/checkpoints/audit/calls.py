"""What one global, one call or one state of a pickle would do: the exact list, and what its arguments must be.

A name is judged by its module and its whole qualified name: `random._os.system` is not `random`. Names that pass
through something that is not a class (`dataclasses.builtins.eval`) always count as code that runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from nantrap.checkpoints.audit.known_names import (
    ACTS,
    CALLABLE_SCALARS,
    CLASSES,
    CLASSES_THAT_RUN,
    CONSTRUCTED,
    FUNCTIONS,
    GADGETS,
    HARMLESS_BUILTINS,
    HARMLESS_MODULES,
    MODULES_THAT_RUN,
    RUNS,
    VALUES,
)  # fmt: skip
from nantrap.checkpoints.audit.pickles import GETATTR, HOOKS, Name, Persistent, PickleCall

_REBUILD: Final = frozenset(name for name in FUNCTIONS if name.module == "torch._utils")
_NUMPY_CORE = ("numpy.core", "numpy._core")


def _is_type(value: object) -> bool:
    """Whether an argument is a type or constant that data name."""
    return isinstance(value, Name) and (value in VALUES or value in CLASSES)


def _is_class(value: object) -> bool:
    """Whether an argument is a class, known or not, and no function."""
    return _is_type(value) or (isinstance(value, Name) and judge_name(value) != "run" and _looks_like_a_class(value))


def _are_plain(call: PickleCall, *, types: bool = False) -> bool:
    """Whether no argument is a function, what an unpickler would make into one, or an iterator."""
    level: list[object] = list(call.arguments)
    for _ in range(8):
        for argument in level:
            if isinstance(argument, Name) and not (types and _is_type(argument)):
                return False
            if isinstance(argument, PickleCall) and (makes_a_function(argument) or _is_iterator(argument)):
                return False
        level = [part for value in level for part in parts_of(value)]
        if not level:
            return True
    return False


def parts_of(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, (list, tuple)) else ()


def makes_a_function(call: PickleCall) -> bool:
    return call.is_call_of(
        "builtins.getattr", "functools.partial", "operator.attrgetter", "operator.methodcaller", "_operator.attrgetter",
        "_operator.methodcaller",
    )  # fmt: skip


def _is_iterator(call: PickleCall) -> bool:
    """Whether the result runs while it is iterated, perhaps without an end."""
    function = call.function
    return isinstance(function, Name) and (
        function.module == "itertools"
        or (
            function.module == "builtins"
            and function.qualname in ("zip", "enumerate", "reversed", "iter", "map", "filter")
        )
    )


KEEPS: Final = frozenset(
    Name("builtins", kind) for kind in ("list", "tuple", "dict", "set", "frozenset", "slice")
) | {Name("collections", kind) for kind in ("OrderedDict", "deque", "defaultdict", "Counter")}  # fmt: skip
"""Constructors that keep what they are given, and touch only the container that it comes in."""
EXCEPTIONS: Final = frozenset(
    name
    for name in CLASSES
    if name.module == "builtins"
    and re.search(r"(?<!Unicode)(?<!Decode)(?<!Syntax)(Error|Warning|Exception)$", name.qualname)
)
_HOLDS_ITEMS: Final = frozenset(name for name in CLASSES if name.qualname == "AttributeDict")
"""Dictionaries among the known classes: the only ones that a pickler gives items."""


class CallEffect(NamedTuple):
    """How a call was judged.

    `data` builds data; `unknown` makes an instance of a class that is not on the list; `unclear` acts in a way that a
    checkpoint may need; `run` is refused.
    """

    kind: Literal["data", "unknown", "unclear", "run"]
    why: str = ""


_DATA: Final = CallEffect("data")
_WRONG: Final = CallEffect("run", "is called with arguments that no pickler writes")
_CALLED: Final = CallEffect("run", "is called")
_UNNAMED: Final = CallEffect("run", "is called, and it is not known what it is")


# ---- calls whose arguments decide: whether they are those that a pickler writes


def _attribute(call: PickleCall) -> bool:
    """`getattr(object, "method")`: a bound method. Of a class, it was made into a dotted name already."""
    given = call.arguments
    if len(given) == 2 and given[1] == "__exit__":  # what a hook of nantrap becomes in a file: it does nothing
        return isinstance(given[0], PickleCall) and given[0].is_call_of("contextlib.nullcontext")
    fits = len(given) == 2 and isinstance(given[1], str) and re.fullmatch(r"(?!_)\w+", given[1]) is not None
    return fits and not isinstance(given[0], Name) and not _is_function_call(given[0])


def _type_of(call: PickleCall) -> bool:
    """`type(None)`; with three arguments it makes a class, with the methods that the pickle gives."""
    given = call.arguments
    return len(given) == 1 and (given[0] is None or given[0] in (Name("builtins", "Ellipsis"), _NOT_IMPLEMENTED))


def _subscript(call: PickleCall) -> bool:
    """`operator.getitem(typing.Union, (int, str))`."""
    given = call.arguments
    fits = len(given) == 2 and isinstance(given[0], Name) and given[0].module == "typing" and given[0] in VALUES
    return fits and _are_types(given[1])


def _generic(call: PickleCall) -> bool:
    """`types.GenericAlias(list, (int,))`, and `functools.reduce(operator.or_, (int, str))` for `int | str`."""
    given = call.arguments
    first = given[0] if given else None
    joins = first in (Name("operator", "or_"), Name("_operator", "or_"))
    if call.is_call_of("types.GenericAlias"):
        return len(given) == 2 and _is_class(first) and _are_types(given[1])
    return len(given) == 2 and joins and _are_types(given[1])


def _partial(call: PickleCall) -> bool:
    """`functools.partial(function)` keeps the function and calls nothing."""
    return bool(call.arguments)


def _array(call: PickleCall) -> bool:
    """`numpy._core.multiarray._reconstruct(numpy.ndarray, (0,), b"b")`."""
    first = call.arguments[0] if call.arguments else None
    rest = tuple(argument for argument in call.arguments if not (isinstance(argument, Name) and argument in _ARRAYS))
    return isinstance(first, Name) and first in _ARRAYS and _are_plain(PickleCall(call.function, rest), types=True)


def _python_array(call: PickleCall) -> bool:
    """`array.array("d", [1.0])`, and `array._array_reconstructor(array.array, "d", 15, b"...")`."""
    first = call.arguments[0] if call.arguments else None
    rest = PickleCall(call.function, call.arguments[1:])
    return (first == Name("array", "array") or isinstance(first, str)) and _are_plain(rest)


def _ufunc(call: PickleCall) -> bool:
    """`numpy.core._ufunc_reconstruct(module, name)` imports the module."""
    given = call.arguments
    if len(given) != 2 or given[0] not in ("numpy", "numpy.core._multiarray_umath", *_NUMPY_CORE):
        return False
    import numpy

    return isinstance(given[1], str) and isinstance(getattr(numpy, given[1], None), numpy.ufunc)


def _generator(call: PickleCall) -> bool:
    """`numpy.random._pickle.__generator_ctor(name_or_class, constructor)` calls what it is given."""
    for argument in call.arguments:
        name = argument.function if isinstance(argument, PickleCall) else argument
        if not isinstance(name, (Name, str)) or (isinstance(name, Name) and name not in _RANDOM):
            return False
    return True


def _iterates(call: PickleCall) -> bool:
    """`iter([...])`; with two arguments it would call the first."""
    return len(call.arguments) == 1 and isinstance(call.arguments[0], (list, tuple, dict, str, bytes))


def _encodes(call: PickleCall) -> bool:
    """`_codecs.encode(text, "latin1")`, how protocol 2 writes bytes; other codecs unpack or import."""
    given = call.arguments
    return len(given) == 2 and isinstance(given[0], str) and given[1] in ("latin1", "latin-1")


def _defaults(call: PickleCall) -> bool:
    """`collections.defaultdict(int)`: whoever looks up a missing key calls the factory."""
    return len(call.arguments) <= 1 or isinstance(call.arguments[1], (dict, list))


def _either(call: PickleCall) -> bool:
    """`operator.or_(Flag.A, Flag.B)`: how Python 3.11.2 writes a flag."""
    fits = all(
        isinstance(argument, int)
        or (isinstance(argument, Name) and _looks_like_a_class(argument) and "." in argument.qualname)
        or (isinstance(argument, PickleCall) and not makes_a_function(argument))
        for argument in call.arguments  # what they do is judged by `_used`
    )
    return fits and len(call.arguments) == 2


def _file_system(call: PickleCall) -> bool:
    """`fsspec.spec.make_instance(LocalFileSystem, (), {})`: in callbacks of Lightning that were pickled whole."""
    given = call.arguments
    return len(given) == 3 and given[0] == _LOCAL_FILES and given[1] in ((), []) and given[2] == {}


def _index(call: PickleCall) -> bool:
    """`pandas.core.indexes.base._new_Index(class, values)`."""
    first = call.arguments[0] if call.arguments else None
    fits = isinstance(first, Name) and first.module.startswith("pandas.core.indexes.") and _looks_like_a_class(first)
    return fits and _are_plain(PickleCall(call.function, call.arguments[1:]))


def _is_function_call(value: object) -> bool:
    return isinstance(value, PickleCall) and makes_a_function(value)


def _are_types(value: object, depth: int = 8) -> bool:
    if isinstance(value, (tuple, list)):
        return depth > 0 and all(_are_types(part, depth - 1) for part in value)
    return not isinstance(value, Name) or _is_class(value)


# ---- calls that make an instance of what they are given


def _reconstructs(call: PickleCall) -> CallEffect:
    """`copyreg._reconstructor(cls, base, state)`: how protocols 0 and 1 make an instance."""
    if len(call.arguments) != 3 or not isinstance(call.arguments[0], Name):
        return _WRONG
    base = call.arguments[1]
    if base not in _BASES:
        return _WRONG
    return judge_call(_as_new(call, call.arguments[0], call.arguments[2:]))[1]


def _makes_new(call: PickleCall) -> CallEffect:
    """`copyreg.__newobj__(cls, *args)`."""
    if not call.arguments or not isinstance(call.arguments[0], Name):
        return _WRONG
    return judge_call(_as_new(call, call.arguments[0], call.arguments[1:]))[1]


def _as_new(call: PickleCall, made: object, arguments: tuple[object, ...]) -> PickleCall:
    """The call as NEWOBJ would write it, with what is put into the result."""
    new = PickleCall(made, arguments, "new")
    new.state, new.items, new.pairs = call.state, call.items, call.pairs
    return new


def _rebuilds_from_type(call: PickleCall) -> CallEffect:
    """`torch._tensor._rebuild_from_type_v2(function, type, arguments, state)` calls the function."""
    given = call.arguments
    made = given[1] if len(given) == 4 else None
    if isinstance(made, Name) and given[0] in _REBUILD and _is_class(made) and isinstance(given[2], tuple):
        inner = judge_call(PickleCall(given[0], given[2]))[1]
        return inner if inner.kind != "data" or _is_type(made) else _judge_class(_as_new(call, made, ()), made)
    return _WRONG


def _wraps(call: PickleCall) -> CallEffect:
    """`torch._utils._rebuild_wrapper_subclass(cls, dtype, size, ...)`: what is done with the result calls the class."""
    made = call.arguments[0] if call.arguments else None
    rest = PickleCall(call.function, call.arguments[1:])
    if not isinstance(made, Name) or not _are_plain(rest, types=True):
        return _WRONG
    return judge_call(_as_new(call, made, ()))[1]


def new_with_keywords(call: PickleCall) -> PickleCall | None:
    """`partial(cls.__new__, cls, a=1)()` as a `new` call of the class: protocols 2 and 3 write keywords so."""
    partial = call.function
    if call.arguments or not isinstance(partial, PickleCall) or not partial.is_call_of("functools.partial"):
        return None
    state = partial.state
    if not (isinstance(state, tuple) and len(state) == 4 and isinstance(state[1], tuple) and state[1]):
        return None
    new, made = state[0], state[1][0]
    if partial.arguments != (new,):
        return None  # the state may come after the call, which then calls something else
    if isinstance(new, Name) and isinstance(made, Name) and new == Name(made.module, f"{made.qualname}.__new__"):
        keywords = state[2].values() if isinstance(state[2], dict) else ()
        return _as_new(call, made, (*state[1][1:], *keywords))
    return None


_LOCAL_FILES = Name("fsspec.implementations.local", "LocalFileSystem")
_BASES = frozenset(
    Name("builtins", kind) for kind in ("object", "dict", "list", "int", "float", "str", "tuple", "set", "bytes")
)
_NOT_IMPLEMENTED = Name("builtins", "NotImplemented")
_RANDOM_MAKERS: Final = frozenset(
    Name("numpy.random._pickle", kind) for kind in ("__generator_ctor", "__bit_generator_ctor", "__randomstate_ctor")
)
_RANDOM: Final = _RANDOM_MAKERS | {name for name in CLASSES if name.module.startswith("numpy.random.")}
_ARRAYS = frozenset(
    Name("numpy", kind) for kind in ("ndarray", "matrix", "recarray")
) | {Name("numpy.ma.core", "MaskedArray"), Name("numpy.ma", "MaskedArray"), Name("numpy.rec", "recarray")}  # fmt: skip

FITS: Final[Mapping[Name, Callable[[PickleCall], bool]]] = {
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
    Name("fsspec.spec", "make_instance"): _file_system,
    **dict.fromkeys(_RANDOM_MAKERS, _generator),
    **{
        Name(f"{core}{module}", "_reconstruct"): _array
        for core in _NUMPY_CORE
        for module in (".multiarray", "._multiarray_umath")
    },
    Name("numpy.ma.core", "_mareconstruct"): _array,
    **{Name(core, "_ufunc_reconstruct"): _ufunc for core in _NUMPY_CORE},
}
"""Callables that build data if their arguments are those that a pickler writes."""

MAKES: Final[Mapping[Name, Callable[[PickleCall], CallEffect]]] = {
    Name("copyreg", "_reconstructor"): _reconstructs,
    Name("copyreg", "__newobj__"): _makes_new,
    Name("torch._tensor", "_rebuild_from_type"): _rebuilds_from_type,
    Name("torch._tensor", "_rebuild_from_type_v2"): _rebuilds_from_type,
    Name("torch._utils", "_rebuild_wrapper_subclass"): _wraps,
}
"""Callables that make an instance of a class, or of a tensor's subclass: it decides."""

_ENUMS = re.compile(r"(Strategy|Type|Names|Option|Mode|Backend|Environment|Enum)$")
"""The enums among the known classes of other packages: the only ones that a pickler calls with a value."""
_MEMBERS: Final = frozenset(
    name
    for name in CLASSES | VALUES
    if _ENUMS.search(name.qualname)
    or name.qualname.endswith(("ENCODING", "State", "Flag", "Status", "Signals", "Kind", "Format"))
    or (name.module == "builtins" and name.qualname in ("str", "int", "float", "bytes", "dict", "list", "tuple", "set"))
)
"""Classes of which a member may be named: enums, and plain types whose methods change nothing but their object."""

_KNOWN: Final = (
    VALUES | CLASSES | FUNCTIONS | FITS.keys() | MAKES.keys() | {Name("builtins", "type"), _LOCAL_FILES} | _ARRAYS
)
"""Everything that data name, or that builds data."""


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


def judge_name(name: Name) -> str:
    """`data`, `named`, `unknown` or `run`, for a global that is only named."""
    if name in _KNOWN:
        return "data"
    parts = name.qualname.split(".")
    if not _MODULE.fullmatch(name.module) or not all(part.isidentifier() for part in parts):
        return "run"
    if parts[-1] == "__main__" or name.module.endswith("__main__"):
        return "run" if name.module != "__main__" else _judge_script(parts)
    first = Name(name.module, parts[0])
    if len(parts) == 2 and first in _MEMBERS and not parts[1].startswith("__"):
        return "data"  # a member of an enum, a method of a plain type
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
    return "unknown"


def _judge_script(parts: list[str]) -> str:
    """A global of the script that loads the file: its own class or function, and nothing that it imported."""
    return "unknown" if all(map(_CLASS_PART.fullmatch, parts[:-1])) and not parts[-1].startswith("__") else "run"


def judge_call(call: PickleCall) -> tuple[str, CallEffect]:
    """The name of what is called, and how it was judged."""
    function = call.function
    if not isinstance(function, Name):
        made = new_with_keywords(call)
        return judge_call(made) if made else ("(the result of a call)", _UNNAMED)
    if function in FITS:
        return function.full, _DATA if FITS[function](call) else _WRONG
    if function in MAKES:
        outcome = MAKES[function](call)
        named = call.arguments[0] if outcome.kind not in ("data", "run") and call.arguments else None
        return named.full if isinstance(named, Name) else function.full, outcome
    if function in FUNCTIONS:
        fits = call.how == "reduce" and (function in _REBUILD or _are_plain(call, types=True))
        return function.full, _DATA if fits else _WRONG
    if (call.items is not None or call.pairs is not None) and function in CLASSES | VALUES:
        return function.full, _DATA if function in _HOLDS_ITEMS and not call.arguments else _WRONG
    if function in ACTS:
        return function.full, CallEffect("unclear", "it joins a process group")
    if function in CLASSES:
        calls = call.how == "reduce" and bool(call.arguments)
        fits = not calls or function in CONSTRUCTED or _ENUMS.search(function.qualname) is not None
        keeps = function in KEEPS or function in EXCEPTIONS
        return function.full, _DATA if fits and (keeps or _are_plain(call, types=True)) else _WRONG
    parts = function.qualname.split(".")
    if function in CALLABLE_SCALARS and _are_plain(call):
        return function.full, _DATA
    if len(parts) == 2 and Name(function.module, parts[0]) in CLASSES:
        return function.full, _CALLED  # a method of a known class
    root = function.module.partition(".")[0]
    known = root in ("torch", "numpy", "builtins") or root in sys.stdlib_module_names
    if known or judge_name(function) == "run":
        return function.full, _CALLED
    return function.full, _judge_class(call, function)


def _judge_class(call: PickleCall, made: Name) -> CallEffect:
    """An instance of a class that is not on the list. What is no class by its name is a function that would run."""
    constructs = call.how == "reduce" and bool(call.arguments)
    acts = made.qualname.rpartition(".")[2] in CLASSES_THAT_RUN or not _looks_like_a_class(made)
    return _CALLED if acts or (constructs and not _are_plain(call, types=True)) else CallEffect("unknown")


def judge_state(target: object, state: object) -> tuple[str, str] | None:
    """What is wrong with giving this object that state. A global must not be changed, and no hook may be added."""
    if isinstance(target, (Name, Persistent)):
        return target.full if isinstance(target, Name) else "(a storage)", "would be changed"
    if _is_function_call(target) and not (isinstance(target, PickleCall) and target.is_call_of("functools.partial")):
        return "(the result of getattr)", "would be changed"
    if isinstance(target, PickleCall) and target.is_call_of("logging.getLogger", "builtins.type", "operator.getitem"):
        return str(getattr(target.function, "full", "")), "would be changed"
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in parts:
        if isinstance(part, dict):
            for key in part:
                if isinstance(key, str) and key in HOOKS and not isinstance(part[key], (str, int, float, type(None))):
                    return f"({key})", "would be set on an object, and called by the unpickler"
    return None
