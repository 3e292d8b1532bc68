"""What a pickle would do when it is loaded, and whether a checkpoint may do it.

`torch.load(weights_only=False)` imports every global a pickle names and calls whatever it asks to call. The answers:

data     an exact pair of module and name, known to build data and nothing else, called with arguments that fit
named    something unknown that is only named, or a class that runs none of its code when it is made, by its source.
         A note
made     a class whose source is not on this machine: an instance is made and filled. A warning
unclear  a class whose source is here, and runs code that cannot be judged. A separate warning, and exit code 1
run      everything else that would be called, and what a checkpoint never needs to name. An error

A class is judged by its source in `class_sources`, everything else by the tables of `known_names`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from nantrap.checkpoints.audit.known_names import (
    CALLABLE_SCALARS,
    CLASSES,
    CLASSES_THAT_RUN,
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
from nantrap.checkpoints.audit.pickles import GETATTR, Name, Pickle, PickleCall
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.incident.wording import escaped


@dataclass(frozen=True, slots=True)
class Imports:
    """What the pickles of a file would run, make and name, by full name.

    Attributes:
        run: what must not run, and how each was judged.
        made: classes whose source is not here.
        named: what is only named, and classes whose source is here and shows that making them runs nothing.
        unclear: classes whose code would run and cannot be judged, and what was found in it.
    """

    run: Mapping[str, str]
    made: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    unclear: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Imports) -> Imports:
        """Both together, each name once."""
        return Imports(
            {**self.run, **other.run},
            tuple(dict.fromkeys((*self.made, *other.made))),
            tuple(dict.fromkeys((*self.named, *other.named))),
            {**self.unclear, **other.unclear},
        )


NOTHING: Final = Imports({})


def judge(pickle: Pickle, *, loads: Callable[[PickleCall], bool] = lambda call: False) -> Imports:
    """What loading this pickle would do.

    Args:
        pickle: as `read_pickle` gave it.
        loads: whether a call of `torch.storage._load_from_bytes` was followed into its bytes and judged there.
    """
    run: dict[str, str] = {f"({offence})": offence for offence in pickle.offences}
    made: dict[str, None] = {}
    here: dict[str, None] = {}
    unclear: dict[str, str] = {}
    called: set[Name] = set()
    filled = Counter(id(target) for target, _ in pickle.builds)
    for call in pickle.calls:
        if filled[id(call.function)] > 1:  # the result may be something else than what was called
            run.setdefault("(the result of a call)", "is called, and it is not known what it is")
        if call.is_call_of(LOADER) and loads(call):
            called.add(LOADER_NAME)
            continue
        name, (kind, why) = judge_call(call)
        if isinstance(call.function, Name):
            called.add(call.function)
        elif (new := new_with_keywords(call)) is not None and isinstance(new.function, Name):
            called.add(Name(new.function.module, f"{new.function.qualname}.__new__"))
        if LOADER_NAME in call.arguments:
            run.setdefault(LOADER, "is kept to be called")
        if kind == "run":
            run.setdefault(name, why)
        elif kind == "unclear":
            unclear.setdefault(name, why)
        elif kind != "data":
            (made if kind == "absent" else here)[name] = None
    for target, state in pickle.builds:
        offence = judge_state(target, state)
        if offence is not None:
            run.setdefault(*offence)
    named: dict[str, None] = dict(here)
    for one in pickle.names:
        verdict = judge_name(one)
        if verdict == "run" and one not in called:
            run.setdefault(one.full, "is no part of a checkpoint")
        elif verdict == "named" and one.full not in made and one not in called:
            named[one.full] = None
    worse = {*run, *unclear}
    return Imports(
        run,
        tuple(name for name in made if name not in worse),
        tuple(name for name in named if name not in worse),
        {name: why for name, why in unclear.items() if name not in run},
    )


def problems_of_imports(imports: Imports) -> tuple[CheckpointProblem, ...]:
    """At most one error, two warnings and one note."""
    problems = []
    if imports.run:
        names = tuple(imports.run)
        text = f"loading it would run {_join(names)}; it was read without running anything"
        problems.append(checkpoint_problem("NT910", text, imports=names))
    if imports.unclear:
        names = tuple(imports.unclear)
        unclear = escaped(next(iter(imports.unclear.values())), most=200)
        text = f"loading it would run code of {_join(names)}, and nantrap cannot tell what it does ({unclear})"
        problems.append(checkpoint_problem("NT913", text, severity="warning", imports=names))
    if imports.made:
        text = (
            f"loading it needs the code of {_join(imports.made)}, which is not on this machine: what it does is not "
            "known; the tensors were read without it"
        )
        problems.append(checkpoint_problem("NT910", text, severity="warning", imports=imports.made))
    if imports.named:
        text = f"the pickle names {_join(imports.named)}, and runs none of their code"
        problems.append(checkpoint_problem("NT910", text, severity="note", imports=imports.named))
    return tuple(problems)


def _join(names: tuple[str, ...], shown: int = 4) -> str:
    text = ", ".join(escaped(name, most=120) for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"


# ---- what one global, one call or one state would do
#
# A name is judged by its module and its whole qualified name: `random._os.system` is not `random`. Names that pass
# through something that is not a class (`dataclasses.builtins.eval`) always count as code that runs.


_REBUILD: Final = frozenset(name for name in FUNCTIONS if name.module == "torch._utils")
_NUMPY_CORE = ("numpy.core", "numpy._core")


def _is_type(value: object) -> bool:
    """Whether an argument is a type or constant that data name."""
    return isinstance(value, Name) and (value in VALUES or value in CLASSES)


def _is_class(value: object) -> bool:
    """Whether an argument is a class, known or not, and no function."""
    return _is_type(value) or (isinstance(value, Name) and judge_name(value) == "named" and _looks_like_a_class(value))


def _are_plain(call: PickleCall, *, types: bool = False) -> bool:
    """Whether no argument is a function, or what an unpickler would make into one."""
    for argument in call.arguments:
        if isinstance(argument, Name) and not (types and _is_type(argument)):
            return False
        if isinstance(argument, PickleCall) and _makes_a_function(argument):
            return False
    return True


def _makes_a_function(call: PickleCall) -> bool:
    return call.is_call_of("builtins.getattr", "functools.partial", "operator.attrgetter", "operator.methodcaller")


class CallEffect(NamedTuple):
    """How a call was judged.

    `data` builds data; `here` makes an instance of a class whose source is here and shows that nothing else runs;
    `absent` one of a class whose source is not here; `unclear` one whose code cannot be judged; `run` is refused.
    """

    kind: Literal["data", "here", "absent", "unclear", "run"]
    why: str = ""


_DATA: Final = CallEffect("data")
_WRONG: Final = CallEffect("run", "is called with arguments that no pickler writes")
_CALLED: Final = CallEffect("run", "is called")
_UNKNOWN: Final = CallEffect("run", "is called, and it is not known what it is")


# ---- calls whose arguments decide: whether they are those that a pickler writes


def _attribute(call: PickleCall) -> bool:
    """`getattr(object, "method")`: a bound method. Of a class, it was made into a dotted name already."""
    given = call.arguments
    fits = len(given) == 2 and isinstance(given[1], str) and re.fullmatch(r"(?!__)\w+", given[1]) is not None
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
    fits = _is_class(first) or first in (Name("operator", "or_"), Name("_operator", "or_"))
    return len(given) == 2 and fits and _are_types(given[1])


def _partial(call: PickleCall) -> bool:
    """`functools.partial(function)` keeps the function and calls nothing."""
    return bool(call.arguments)


def _array(call: PickleCall) -> bool:
    """`numpy._core.multiarray._reconstruct(numpy.ndarray, (0,), b"b")`."""
    first = call.arguments[0] if call.arguments else None
    return isinstance(first, Name) and first in _ARRAYS


def _python_array(call: PickleCall) -> bool:
    """`array.array("d", [1.0])`, and `array._array_reconstructor(array.array, "d", 15, b"...")`."""
    first = call.arguments[0] if call.arguments else None
    return first == Name("array", "array") or (isinstance(first, str) and _are_plain(call))


def _ufunc(call: PickleCall) -> bool:
    """`numpy.core._ufunc_reconstruct(module, name)` imports the module."""
    given = call.arguments
    return len(given) == 2 and given[0] in ("numpy", *_NUMPY_CORE) and isinstance(given[1], str)


def _generator(call: PickleCall) -> bool:
    """`numpy.random._pickle.__generator_ctor(name_or_class, constructor)` calls what it is given."""
    for argument in call.arguments:
        if isinstance(argument, Name) and not argument.module.startswith("numpy.random."):
            return False
        if isinstance(argument, Name) and judge_name(argument) == "run":
            return False
    return not any(_is_function_call(argument) for argument in call.arguments)


def _iterates(call: PickleCall) -> bool:
    """`iter([...])`; with two arguments it would call the first."""
    return len(call.arguments) == 1 and isinstance(call.arguments[0], (list, tuple, dict, str, bytes))


def _encodes(call: PickleCall) -> bool:
    """`_codecs.encode(text, "latin1")`, how protocol 2 writes bytes; other codecs unpack or import."""
    given = call.arguments
    return len(given) == 2 and isinstance(given[0], str) and given[1] in ("latin1", "latin-1")


def _defaults(call: PickleCall) -> bool:
    """`collections.defaultdict(int)` keeps its factory; loading looks up no missing key."""
    return len(call.arguments) == 1 or isinstance(call.arguments[1], (dict, list))


def _either(call: PickleCall) -> bool:
    """`operator.or_(Flag.A, Flag.B)`: how Python 3.11.2 writes a flag."""
    fits = all(
        isinstance(argument, int)
        or (isinstance(argument, Name) and _looks_like_a_class(argument) and "." in argument.qualname)
        or (isinstance(argument, PickleCall) and not _makes_a_function(argument))
        for argument in call.arguments
    )
    return fits and len(call.arguments) == 2


def _file_system(call: PickleCall) -> bool:
    """`fsspec.spec.make_instance(LocalFileSystem, (), {})`: in callbacks of Lightning that were pickled whole."""
    given = call.arguments
    return len(given) == 3 and given[0] == _LOCAL_FILES and given[1] in ((), []) and given[2] == {}


def _index(call: PickleCall) -> bool:
    """`pandas.core.indexes.base._new_Index(class, values)`."""
    first = call.arguments[0] if call.arguments else None
    return isinstance(first, Name) and first.module.startswith("pandas.core.indexes.") and _looks_like_a_class(first)


def _is_function_call(value: object) -> bool:
    return isinstance(value, PickleCall) and _makes_a_function(value)


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
    new.state, new.is_filled, new.items, new.pairs = call.state, call.is_filled, call.items, call.pairs
    return new


def _rebuilds_from_type(call: PickleCall) -> CallEffect:
    """`torch._tensor._rebuild_from_type_v2(function, type, arguments, state)` calls the function."""
    given = call.arguments
    made = given[1] if len(given) == 4 else None
    if isinstance(made, Name) and given[0] in _REBUILD and _is_class(made) and isinstance(given[2], tuple):
        inner = judge_call(PickleCall(given[0], given[2]))[1]
        return inner if inner.kind != "data" or _is_type(made) else _judge_class(_as_new(call, made, ()), made)
    return _WRONG


def new_with_keywords(call: PickleCall) -> PickleCall | None:
    """`partial(cls.__new__, cls, a=1)()` as a `new` call of the class: protocols 2 and 3 write keywords so."""
    partial = call.function
    state = partial.state if isinstance(partial, PickleCall) and partial.is_call_of("functools.partial") else None
    if call.arguments or not (
        isinstance(state, tuple) and len(state) == 4 and isinstance(state[1], tuple) and state[1]
    ):
        return None
    new, made = state[0], state[1][0]
    if isinstance(new, Name) and isinstance(made, Name) and new == Name(made.module, f"{made.qualname}.__new__"):
        keywords = state[2].values() if isinstance(state[2], dict) else ()
        return _as_new(call, made, (*state[1][1:], *keywords))
    return None


_LOCAL_FILES = Name("fsspec.implementations.local", "LocalFileSystem")
_BASES = frozenset(
    Name("builtins", kind) for kind in ("object", "dict", "list", "int", "float", "str", "tuple", "set", "bytes")
)
_NOT_IMPLEMENTED = Name("builtins", "NotImplemented")
_ARRAYS = frozenset(
    Name("numpy", kind) for kind in ("ndarray", "matrix", "recarray")
) | {Name("numpy.ma.core", "MaskedArray"), Name("numpy.ma", "MaskedArray"), Name("numpy.rec", "recarray")}  # fmt: skip

_FITS: Final[Mapping[Name, Callable[[PickleCall], bool]]] = {
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
"""Callables that build data if their arguments are those that a pickler writes."""

_MAKES: Final[Mapping[Name, Callable[[PickleCall], CallEffect]]] = {
    Name("copyreg", "_reconstructor"): _reconstructs,
    Name("copyreg", "__newobj__"): _makes_new,
    Name("torch._tensor", "_rebuild_from_type"): _rebuilds_from_type,
    Name("torch._tensor", "_rebuild_from_type_v2"): _rebuilds_from_type,
}
"""Callables that make an instance of a class, or of a tensor's subclass: it decides."""

_KNOWN: Final = (
    VALUES | CLASSES | FUNCTIONS | _FITS.keys() | _MAKES.keys() | {Name("builtins", "type"), _LOCAL_FILES} | _ARRAYS
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
    """`data`, `named` or `run`, for a global that is only named."""
    if name in _KNOWN:
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


_ENUMS = re.compile(r"(Strategy|Type|Names|Option|Mode|Backend|Environment|Enum)$")
"""The enums among the known classes of other packages: the only ones that a pickler calls with a value."""


def judge_call(call: PickleCall) -> tuple[str, CallEffect]:
    """The name of what is called, and how it was judged."""
    function = call.function
    if not isinstance(function, Name):
        made = new_with_keywords(call)
        return judge_call(made) if made else ("(the result of a call)", _UNKNOWN)
    if function in _FITS:
        return function.full, _DATA if _FITS[function](call) else _WRONG
    if function in _MAKES:
        outcome = _MAKES[function](call)
        named = call.arguments[0] if outcome.kind not in ("data", "run") and call.arguments else None
        return named.full if isinstance(named, Name) else function.full, outcome
    if function in FUNCTIONS:
        fits = call.how == "reduce" and (function in _REBUILD or _are_plain(call, types=True))
        return function.full, _DATA if fits else _WRONG
    if function in CLASSES:
        if call.how == "new" or not call.arguments:
            return function.full, _DATA
        root = function.module.partition(".")[0]
        own = (
            root in ("torch", "numpy")
            or root in sys.stdlib_module_names
            or _ENUMS.search(function.qualname) is not None
        )
        return function.full, _DATA if own and _are_plain(call, types=True) else _WRONG
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
    """An instance of an unknown class: harmless by its source, absent here, or code that runs.

    A constructor that is called with arguments (REDUCE) is judged more strictly than an instance that is made and
    filled (NEWOBJ, BUILD): an enum, an exception or a class of data is made so, and everything else is refused.
    """
    from nantrap.checkpoints.audit.class_sources import effect_of, is_enum

    constructs = call.how == "reduce" and bool(call.arguments)
    if constructs and not _are_plain(call, types=True):
        return _CALLED
    if made.qualname.rpartition(".")[2] in CLASSES_THAT_RUN:
        return _CALLED
    hooks = ("_missing_",) if call.how == "reduce" and is_enum(made) else tuple(_hooks_of(call))
    effect, why = effect_of(made, hooks)
    if effect == "nothing":
        return CallEffect("here")
    if effect == "system" or not _looks_like_a_class(made):
        return CallEffect("run", f"is called ({why})")
    if effect == "absent":
        return CallEffect("absent")
    return CallEffect("run" if constructs else "unclear", why)


def _hooks_of(call: PickleCall) -> Iterator[str]:
    """The methods of an instance that the unpickler calls, and at the end the garbage collector."""
    yield from ("__new__", "__del__")
    if call.how == "reduce":
        yield from ("__init__", "__post_init__")
    if call.is_filled:
        yield from ("__setstate__", "__getattr__", "__getattribute__")
    if call.is_filled and isinstance(call.state, tuple):
        yield "__setattr__"  # the values of slots
    if call.items is not None:
        yield from ("append", "extend", "add")
    if call.pairs is not None:
        yield "__setitem__"


_HOOKS: Final = frozenset(("__setstate__", "append", "extend", "add", "__reduce__", "__reduce_ex__", "__class__"))


def judge_state(target: object, state: object) -> tuple[str, str] | None:
    """What is wrong with giving this object that state. A global must not be changed, and no hook may be added."""
    if isinstance(target, Name):
        return target.full, "would be changed"
    if _is_function_call(target) and not (isinstance(target, PickleCall) and target.is_call_of("functools.partial")):
        return "(the result of getattr)", "would be changed"
    if isinstance(target, PickleCall) and target.is_call_of("logging.getLogger", "builtins.type", "operator.getitem"):
        return str(getattr(target.function, "full", "")), "would be changed"
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in parts:
        if isinstance(part, dict):
            for key in part:
                if isinstance(key, str) and key in _HOOKS and not isinstance(part[key], (str, int, float, type(None))):
                    return f"({key})", "would be set on an object, and called by the unpickler"
    return None
