"""A pickle is read here, never run.

`pickletools` knows the opcodes; this module follows them with a stack and a memo, as an unpickler does, but a global
becomes a `Name`, and what an unpickler would call becomes a `Call` that remembers function and arguments.
Nothing is imported, nothing is called, no attribute is set: `os.system("rm -rf /")` comes out as
`Call(Name("os.system"), ("rm -rf /",))`. Dictionaries, lists, tuples, numbers and strings come out as themselves.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO, Any


class PickleError(ValueError):
    """The bytes are not a pickle, or not a whole one. `truncated` tells which."""

    def __init__(self, message: str, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.truncated = truncated


@dataclass(frozen=True, slots=True)
class Name:
    """A global the pickle asked for: `collections.OrderedDict`."""

    full: str


@dataclass(slots=True, eq=False)
class Call:
    """What an unpickler would have called, with everything the pickle then put into the result."""

    function: object
    arguments: tuple[object, ...]
    state: object = None
    items: list[object] = field(default_factory=list)
    pairs: dict[object, object] = field(default_factory=dict)

    def is_call_of(self, *names: str) -> bool:
        """Whether the function is one of these globals."""
        return isinstance(self.function, Name) and self.function.full in names


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """A reference to something outside the pickle: in torch files, a storage."""

    identity: object


@dataclass(frozen=True, slots=True)
class Pickle:
    """One pickle: its value, and the globals it named, in the order of their first use.

    `embedded` are the calls that would load a further pickle from bytes, as every tensor in a plain pickle does.
    `all_embedded` is false if that function is used in any way but called directly: it may load more than is known.
    """

    value: object
    names: tuple[str, ...]
    embedded: tuple[Call, ...] = ()
    all_embedded: bool = True


def read_pickle(stream: bytes | IO[bytes]) -> Pickle:
    """Follow one pickle to its end. The stream is left right behind it."""
    machine = _Machine()
    file = io.BytesIO(stream) if isinstance(stream, bytes) else stream
    try:
        _follow(file, machine)
        return Pickle(machine.stack[-1], tuple(machine.names), tuple(machine.loads), machine.all_loads_known())
    except PickleError:
        raise
    except (IndexError, KeyError) as error:
        raise PickleError(f"the pickle takes something that was never put there: {error}") from error
    except (ValueError, TypeError, OverflowError, UnicodeError) as error:
        exhausted = "exhausted" in str(error) or "not enough" in str(error) or "expected" in str(error)
        raise PickleError(str(error), truncated=exhausted) from error


_VALUES = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8",
))  # fmt: skip
LOADER = "torch.storage._load_from_bytes"
_NOTHING = frozenset(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"))
_MAPPINGS = frozenset(("collections.OrderedDict", "collections.defaultdict", "builtins.dict"))
_SEQUENCES = frozenset(("builtins.set", "builtins.frozenset", "builtins.list", "builtins.tuple"))


class _Machine:
    """The stack, the memo and the marks of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.names: dict[str, None] = {}
        self._memo: dict[int, Any] = {}
        self._marks: list[list[Any]] = []
        self.loads: list[Call] = []
        self._loader_uses = 0

    def all_loads_known(self) -> bool:
        return len(self.loads) == self._loader_uses

    # Values and the memo.

    def _value(self, argument: Any) -> None:
        self.stack.append(argument)

    def _none(self, _: Any) -> None:
        self.stack.append(None)

    def _newtrue(self, _: Any) -> None:
        self.stack.append(True)

    def _newfalse(self, _: Any) -> None:
        self.stack.append(False)

    def _put(self, argument: int) -> None:
        self._memo[argument] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def _get(self, argument: int) -> None:
        self._push(self._memo[argument])

    _binget = _long_binget = _get

    def _nothing(self, _: Any) -> None:
        pass

    # Marks: `MARK` puts the stack aside and begins a new one; what needs a mark takes all of it.

    def _mark(self, _: Any) -> None:
        self._marks.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self._marks.pop()
        return items

    def _pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    def _pop_mark(self, _: Any) -> None:
        self._since_mark()

    def _dup(self, _: Any) -> None:
        self._push(self.stack[-1])

    def _push(self, value: Any) -> None:
        self._loader_uses += isinstance(value, Name) and value.full == LOADER
        self.stack.append(value)

    # Containers.

    def _empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def _tuple(self, _: Any) -> None:
        items = self._since_mark()
        self.stack.append(tuple(items))

    def _tuple1(self, _: Any) -> None:
        self._join(1)

    def _tuple2(self, _: Any) -> None:
        self._join(2)

    def _tuple3(self, _: Any) -> None:
        self._join(3)

    def _join(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("tuple")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _list(self, _: Any) -> None:
        items = self._since_mark()
        self.stack.append(items)

    _frozenset = _list
    _empty_set = _empty_list

    def _append(self, _: Any) -> None:
        item = self.stack.pop()
        _extend(self.stack[-1], [item])

    def _appends(self, _: Any) -> None:
        items = self._since_mark()
        _extend(self.stack[-1], items)

    _additems = _appends

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _dict(self, _: Any) -> None:
        items = self._since_mark()
        self.stack.append(_update({}, items))

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _update(self.stack[-1], [key, value])

    def _setitems(self, _: Any) -> None:
        items = self._since_mark()
        _update(self.stack[-1], items)

    # Globals and what would be done with them.

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._push(self._named(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._push(self._named(str(module), str(name)))

    def _named(self, module: str, name: str) -> Name:
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        self.names[full] = None
        return Name(full)

    def _ext(self, argument: int) -> None:
        self.stack.append(self._named("copyreg", f"extension {argument}"))

    _ext1 = _ext2 = _ext4 = _ext

    def _reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        result = _construct(function, arguments)
        if isinstance(result, Call) and result.is_call_of(LOADER):
            self.loads.append(result)
        self.stack.append(result)

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        keywords, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        call = Call(function, _as_tuple(arguments), state=keywords)
        self.stack.append(call)

    def _inst(self, argument: str) -> None:
        arguments = self._since_mark()
        module, _, name = argument.partition(" ")
        self._push(self._named(module, name))
        self.stack.append(_construct(self.stack.pop(), tuple(arguments)))

    def _obj(self, _: Any) -> None:
        function, *arguments = self._since_mark()
        self.stack.append(_construct(function, tuple(arguments)))

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Call):
            self.stack[-1].state = state

    def _persid(self, argument: str) -> None:
        self.stack.append(Persistent(argument))

    def _binpersid(self, _: Any) -> None:
        self.stack.append(Persistent(self.stack.pop()))


def _follow(file: IO[bytes], machine: _Machine) -> None:
    """All opcodes up to `STOP`: `pickletools.genops` at twice its speed, since a large file has a million of them."""
    read, code = file.read, b""
    while code != b".":
        code = read(1)
        found = _OPCODES.get(code)
        if found is None:
            raise PickleError(f"opcode {code!r} is unknown" if code else "exhausted before its end", truncated=not code)
        read_argument, handler = found
        handler(machine, read_argument(file) if read_argument is not None else None)


def _handler(name: str) -> Callable[[_Machine, Any], None]:
    def refuse(machine: _Machine, argument: Any) -> None:
        raise PickleError(f"opcode {name} has no place in a checkpoint")

    method = "_value" if name in _VALUES else "_nothing" if name in _NOTHING else f"_{name.lower()}"
    handler: Callable[[_Machine, Any], None] = getattr(_Machine, method, refuse)
    return handler


_OPCODES = {
    opcode.code.encode("latin1"): (opcode.arg.reader if opcode.arg is not None else None, _handler(opcode.name))
    for opcode in pickletools.opcodes
}


def _construct(function: object, arguments: object) -> object:
    """What the call stands for: containers as plain ones, everything else as a `Call`."""
    given = _as_tuple(arguments)
    if isinstance(function, Name):
        if function.full in _MAPPINGS:
            pairs = given[-1] if given and isinstance(given[-1], (list, dict)) else []
            flat = pairs.items() if isinstance(pairs, dict) else pairs
            return _update({}, [part for pair in flat for part in _as_tuple(pair)])
        if function.full in _SEQUENCES:
            return list(given[0]) if given and isinstance(given[0], (list, tuple)) else []
        if function.full == "torch.Size" and given:
            return given[0]
        if function.full == "_codecs.encode" and isinstance(given[0], str) and given[1:] == ("latin1",):
            return given[0].encode("latin1")  # how protocol 2 writes bytes
        if function.full == "builtins.bytes" and not given:
            return b""
    return Call(function, given)


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _extend(target: object, items: Iterable[object]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, Call):
        target.items.extend(items)
    else:
        raise PickleError(f"the pickle appends to a {type(target).__name__}")


def _update(target: object, items: list[object]) -> object:
    if len(items) % 2:
        raise PickleError("the pickle sets a key without a value")
    mapping = target.pairs if isinstance(target, Call) else target
    if not isinstance(mapping, dict):
        raise PickleError(f"the pickle sets keys of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, tuple) and not _is_flat(key):
            raise PickleError("the pickle uses a deeply nested tuple as a key")
        mapping[key] = value
    return target


def _is_flat(key: tuple[object, ...], depth: int = 4) -> bool:
    """Hashing follows nested tuples on the C stack, so a forged key a million levels deep would end the process."""
    parts = [part for part in key if isinstance(part, tuple)]
    return not parts or (depth > 0 and all(_is_flat(part, depth - 1) for part in parts))
