"""What a pickle would do when it is loaded, and whether a checkpoint may do it.

`torch.load(weights_only=False)` imports every global a pickle names and calls whatever it asks to call. The answers:

data     an exact pair of module and name, known to build data and nothing else, called with arguments that fit
named    a harmless part of Python, torch or numpy that is only named. A note
unknown  a class that is not on the list and is made, or a global of another package or of the script that is named.
         A warning
unclear  known code that would use functions or objects of the file. A separate warning, and exit code 1
run      everything else that would be called, and what a checkpoint never needs to name. An error

Names and calls are judged in `calls` by the tables of `known_names`. No source is read, so a file has the same verdict
on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nantrap.checkpoints.audit.calls import (
    EXCEPTIONS,
    FITS,
    KEEPS,
    MAKES,
    judge_call,
    judge_name,
    judge_state,
    makes_a_function,
    new_with_keywords,
    parts_of,
)
from nantrap.checkpoints.audit.known_names import ACTS, CLASSES, FUNCTIONS, LOADER, LOADER_NAME, PURE, TOUCHES, VALUES
from nantrap.checkpoints.audit.pickles import Name, Pickle, PickleCall
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.incident.wording import escaped


@dataclass(frozen=True, slots=True)
class Imports:
    """What the pickles of a file would run, make and name, by full name.

    Attributes:
        run: what must not run, and how each was judged.
        unknown: classes that would be made and globals that are named, of which nantrap does not know what they do.
        named: what is known to do nothing when it is named.
        unclear: known code that would use functions or objects of the file, and which.
    """

    run: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    unclear: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Imports) -> Imports:
        """Both together, each name once."""
        return Imports(
            {**self.run, **other.run},
            tuple(dict.fromkeys((*self.unknown, *other.unknown))),
            tuple(dict.fromkeys((*self.named, *other.named))),
            {**self.unclear, **other.unclear},
        )


NOTHING: Final = Imports({})


def judge(
    pickle: Pickle, *, loads: Callable[[PickleCall], bool] = lambda call: False, compared: bool = False
) -> Imports:
    """What loading this pickle would do.

    Args:
        pickle: as `read_pickle` gave it.
        loads: whether a call of `torch.storage._load_from_bytes` was followed into its bytes and judged there.
        compared: `torch.load` compares the value with the number that a file of torch begins with.
    """
    if compared and isinstance(pickle.value, PickleCall):
        pickle.value.is_compared = True
    run: dict[str, str] = {f"({offence})": offence for offence in pickle.offences}
    unknown: dict[str, None] = {}
    unclear: dict[str, str] = {}
    called: set[Name] = set()
    filled = Counter(id(target) for target, _ in pickle.builds)
    if any(count > 1 for count in filled.values()):  # the first state may hold what the second one calls
        run.setdefault("(an object that is given two states)", "is given two states, as no pickler does")
    reach = _Reach(loads)
    for call in pickle.calls:
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
        if kind == "data" and (found := reach.code_in(_used(call))) is not None:
            kind, why = "unclear", f"it would use {found}, and it is not known what that does"
        if kind == "run":
            run.setdefault(name, why)
        elif kind == "unclear":
            unclear.setdefault(name, why)
        elif kind == "unknown":
            unknown[name] = None
    for target, state in pickle.builds:
        if isinstance(state, dict) and not all(isinstance(state.get(key, {}), (dict, list)) for key in _OF_A_MODULE):
            unclear.setdefault("torch.nn.Module", "its tables are no dictionaries")
        used = () if isinstance(target, PickleCall) and isinstance(state, (dict, list, tuple)) else (state,)
        if (code := reach.code_in(used)) is not None:
            unclear.setdefault(code, "it is the state of another object")
        offence = judge_state(target, state)
        if offence is not None:
            run.setdefault(*offence)
    named: dict[str, None] = {}
    for one in pickle.names:
        verdict = judge_name(one)
        if one in called:
            continue
        if verdict == "run":
            run.setdefault(one.full, "is no part of a checkpoint")
        elif verdict != "data":
            (unknown if verdict == "unknown" else named)[one.full] = None
    worse = {*run, *unclear}
    return Imports(
        run,
        tuple(name for name in unknown if name not in worse),
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
    if imports.unknown:
        text = (
            f"loading it needs {_join(imports.unknown)}, whose code nantrap does not know; "
            "the tensors were read without it"
        )
        problems.append(checkpoint_problem("NT910", text, severity="warning", imports=imports.unknown))
    if imports.named:
        text = f"loading it imports {_join(imports.named)}, and runs nothing else of that"
        problems.append(checkpoint_problem("NT910", text, severity="note", imports=imports.named))
    return tuple(problems)


def _join(names: tuple[str, ...], shown: int = 4) -> str:
    text = ", ".join(escaped(name, most=120) for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"


# ---- what the code that runs would touch
#
# Known code that is given known data does nothing else. It may still call a method of an object that the file put into
# its arguments or its state: `group.setdefault(...)` in the `__setstate__` of an optimizer, or `hash(key)`. So whatever
# such code uses must hold known data alone, all the way down. A class that is not on the list has its own warning.


class _Reach:
    """Finds what is no known data below a value. What was found clean is not searched again."""

    def __init__(self, loads: Callable[[PickleCall], bool]) -> None:
        self._loads = loads
        self._clean: set[int] = set()

    def code_in(self, values: Iterable[object]) -> str | None:
        """The name of the first function or object whose code is not known; `None` if all is known data."""
        pending, seen = list(values), set()
        while pending:
            value = pending.pop()
            if isinstance(value, Name):
                if not _is_inert(value):
                    return value.full
            elif isinstance(value, (PickleCall, dict, list, tuple)):
                if id(value) in self._clean or id(value) in seen:
                    continue
                seen.add(id(value))
                if not isinstance(value, PickleCall):
                    pending.extend(parts_of(value))
                    continue
                name, effect = judge_call(value)
                is_storage = value.is_call_of(LOADER) and self._loads(value)
                if not is_storage and (effect.kind not in ("data", "unknown") or _makes_a_method(value)):
                    return name
                given = _without_function(value)
                pending.extend((*given, value.state, value.items, value.pairs))
        self._clean |= seen
        return None


def _is_inert(name: Name) -> bool:
    """Whether nothing happens whoever calls this: a type or constant of data, or a function that only computes."""
    if name in ACTS or name in FITS or name in MAKES or name in FUNCTIONS:
        return name in VALUES or name in _PLAIN_TYPES
    if name in VALUES or name in CLASSES or name in PURE or judge_name(name) == "data":
        return True
    return judge_call(PickleCall(name, ()))[1].kind == "unknown"  # a class as the type of a field: it has its warning


def _makes_a_method(call: PickleCall) -> bool:
    return makes_a_function(call) and not call.is_call_of("functools.partial")


def _without_function(call: PickleCall) -> tuple[object, ...]:
    """The arguments that are values; the first one of `_rebuild_from_type_v2` and of `_reconstructor` was judged."""
    joins = call.is_call_of("functools.reduce", "_functools.reduce")
    return call.arguments[1:] if joins or call.function in MAKES else call.arguments


def _used(call: PickleCall) -> Iterable[object]:
    """What the known code that makes this object touches: its arguments, and where it reads its state all it holds."""
    function = call.function
    everything = (call.state, call.items, call.pairs)
    is_compared = call.is_compared and not _is_of_torch(function)
    if function in TOUCHES or call.is_key or is_compared:
        return (*_without_function(call), *everything)
    if function in KEEPS:
        return tuple(argument for argument in call.arguments if isinstance(argument, (PickleCall, Name)))
    if isinstance(function, Name) and (function in EXCEPTIONS or function.qualname in ("partial", "_partial")):
        return ()
    given = call.arguments[:3] if call.is_call_of(_WITH_STATE) else _without_function(call)
    return (*given, *_used_of_state(call))


def _used_of_state(call: PickleCall) -> Iterable[object]:
    """What of its state the code that fills this object touches: nothing where it only becomes attributes."""
    state = call.state
    is_array = call.function in FITS and isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], list)
    if is_array and isinstance(state, tuple) and not call.is_call_of("numpy.ma.core._mareconstruct"):
        return state[:4]  # an array of objects keeps them
    parts = state if isinstance(state, tuple) and len(state) == 2 and not _is_of_torch(call.function) else (state,)
    is_plain = all(part is None or isinstance(part, dict) for part in parts)
    return () if is_plain and call.function in CLASSES else (state,)  # it only becomes attributes


def _is_of_torch(function: object) -> bool:
    return isinstance(function, Name) and function.module.partition(".")[0] == "torch"


_WITH_STATE: Final = "torch._utils._rebuild_parameter_with_state"
_OF_A_MODULE: Final = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_PLAIN_TYPES: Final = frozenset(
    Name("collections", kind) for kind in ("defaultdict", "OrderedDict", "Counter", "deque")
) | {Name("array", "array"), Name("builtins", "type")}  # fmt: skip
