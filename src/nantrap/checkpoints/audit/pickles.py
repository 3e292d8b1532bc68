"""A pickle is read here, never run.

This module follows the opcodes with a stack and a memo, as an unpickler does, but a global becomes a `Name`, and what
an unpickler would call becomes a `PickleCall` that remembers function and arguments. Nothing is imported, nothing is
called, no attribute is set: `os.system("rm -rf /")` comes out as `PickleCall(Name("os", "system"), ("rm -rf /",))`.
Dictionaries, lists, tuples, numbers and strings come out as themselves. `trust` judges what was found.

Where Python's unpickler would raise, this one may raise or continue, but it never sees less: every global, every call
and every object that gets a state is recorded.
"""

from __future__ import annotations

import io
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterable
from typing import IO, Any, Final, NamedTuple

_MOST_WORK: Final = 16_000_000
"""Opcodes, with containers counted four times: about 400 MB of objects, and a few seconds."""
_LONGEST_LINE = 1 << 20
_LONGEST_INTEGER = 1 << 10
"""Bytes: Python writes no integer of more than 4,300 digits as text."""
_U2, _U4, _U8, _I4 = (struct.Struct(layout) for layout in ("<H", "<I", "<Q", "<i"))
_F8 = struct.Struct(">d")


# ---- what a pickle holds when it is not run


class PickleError(ValueError):
    """The bytes are not a pickle, or not a whole one. `truncated`: which of the two."""

    def __init__(self, message: str, *, truncated: bool = False) -> None:
        super().__init__(message)
        self.truncated = truncated


class TooLargeError(PickleError):
    """The pickle would take more memory or time than an audit may."""


class Name:
    """A global the pickle asked for: module `collections`, qualified name `OrderedDict`. Never changed."""

    __slots__ = ("_hash", "module", "qualname")

    def __init__(self, module: str, qualname: str) -> None:
        self.module = module
        self.qualname = qualname
        self._hash = hash((module, qualname))

    @property
    def full(self) -> str:
        """`collections.OrderedDict`."""
        return f"{self.module}.{self.qualname}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and self.module == other.module and self.qualname == other.qualname

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Name({self.module!r}, {self.qualname!r})"


class PickleCall:
    """What an unpickler would have called, with everything the pickle then put into the result.

    `how`: `reduce` calls the function, `new` makes an instance with `cls.__new__` alone. `is_key`: it is hashed, as the
    key of a dictionary or a member of a set. `is_compared`: `torch.load` compares it with a number.
    """

    __slots__ = ("arguments", "function", "how", "is_compared", "is_key", "items", "pairs", "state")

    def __init__(self, function: object, arguments: tuple[object, ...], how: str = "reduce") -> None:
        self.function = function
        self.arguments = arguments
        self.how = how
        self.state: object = None
        self.is_key = False
        self.is_compared = False
        self.items: list[object] | None = None
        self.pairs: dict[object, object] | None = None

    def is_call_of(self, *names: str) -> bool:
        """Whether the function is one of these globals."""
        return isinstance(self.function, Name) and self.function.full in names


class Persistent:
    """A reference to something outside the pickle: in torch files, a storage."""

    __slots__ = ("identity",)

    def __init__(self, identity: object) -> None:
        self.identity = identity


class Pickle(NamedTuple):
    """One pickle: its value, and what an unpickler would do to make it.

    Attributes:
        value: the saved object, with `PickleCall` in place of what would be called.
        names: the globals it names, in the order of their first use.
        calls: every call, in the order of the unpickler; empty containers are left out.
        builds: every object that would be given a state, with the state.
        offences: what no pickler writes (a global that is given a state), in words.
    """

    value: object
    names: tuple[Name, ...]
    calls: tuple[PickleCall, ...] = ()
    builds: tuple[tuple[object, object], ...] = ()
    offences: tuple[str, ...] = ()


# ---- following the opcodes


_MAPPINGS = frozenset((
    Name("collections", "OrderedDict"), Name("collections", "defaultdict"), Name("collections", "Counter"),
    Name("builtins", "dict"),
))  # fmt: skip
_SEQUENCES = frozenset((
    Name("builtins", "set"), Name("builtins", "frozenset"), Name("builtins", "list"), Name("builtins", "tuple"),
    Name("collections", "deque"),
))  # fmt: skip
_SIZE = Name("torch", "Size")
_ENCODE = Name("_codecs", "encode")
_BYTES = frozenset((Name("builtins", "bytes"), Name("builtins", "bytearray")))
GETATTR = Name("builtins", "getattr")


def read_pickle(stream: bytes | IO[bytes], *, size: int | None = None) -> Pickle:
    """Follow one pickle to its end. The stream is left right after it.

    Args:
        stream: the bytes, or a file that is open at the start of the pickle.
        size: no argument can be longer than this many bytes; by default those that are there.
    """
    file = io.BytesIO(stream) if isinstance(stream, bytes) else stream
    machine = _Machine(file, len(stream) if isinstance(stream, bytes) else size)
    try:
        value = machine.run()
    except PickleError:
        raise
    except (IndexError, KeyError) as error:
        raise PickleError(f"the pickle takes something that was never put there: {error}") from error
    except (ValueError, TypeError, OverflowError, UnicodeError) as error:
        raise PickleError(str(error)) from error
    calls, builds, offences = tuple(machine.calls), tuple(machine.builds), tuple(machine.offences)
    return Pickle(value, tuple(machine.names), calls, builds, offences)


class _Machine:
    """Follows the opcodes of one pickle, and notes what an unpickler would import, call and fill.

    Holds the stack, the memo and the marks of the pickle, and how much work it was so far.

    Args:
        file: open at the start of the pickle.
        size: no argument can be longer than this many bytes; `None` if that is not known.
    """

    def __init__(self, file: IO[bytes], size: int | None) -> None:
        self._file = file
        self._size = 1 << 62 if size is None else size
        self.stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self._protocol = 0
        self._work = 0
        self.names: dict[Name, None] = {}
        self.calls: list[PickleCall] = []
        self.builds: list[tuple[object, object]] = []
        self.offences: dict[str, None] = {}
        self._known: dict[tuple[str, str], Name] = {}

    def run(self) -> object:
        """The value of the pickle, after its last opcode."""
        read, handlers, code = self._file.read, _HANDLERS, b""
        while code != b".":
            code = read(1)
            handler = handlers.get(code)
            if handler is None:
                words = f"opcode {code!r} is unknown" if code else "the pickle is exhausted before its end"
                raise PickleError(words, truncated=not code)
            self._work += 1
            handler(self)
            if self._work > _MOST_WORK:
                raise TooLargeError("the pickle describes more objects than are read (about 400 MB of them)")
        return self.stack[-1]

    def _spend(self, count: int) -> None:
        """A copy costs as much as it has items, or a few bytes of pickle could copy gigabytes."""
        self._work += count
        if self._work > _MOST_WORK:
            raise TooLargeError("the pickle describes more objects than are read (about 400 MB of them)")

    # Arguments.

    def take(self, count: int) -> bytes:
        if count < 0:
            raise PickleError(f"an argument has a negative length ({count})")
        data = self._file.read(count) if count <= self._size else b""
        if len(data) < count:
            raise PickleError(f"not enough data: expected {count:,} bytes", truncated=True)
        self._work += count >> 5
        return data

    def line(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise PickleError("not enough data: a line does not end", truncated=len(line) < _LONGEST_LINE)
        return line[:-1]

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    # Values that take more than one expression; the others are in the table below.

    def op_proto(self) -> None:
        self._protocol = self.take(1)[0]
        if self._protocol > 5:
            raise PickleError(f"pickle protocol {self._protocol} is unknown")

    def op_frame(self) -> None:
        self.take(8)

    def op_stop(self) -> None:
        if self._marks:
            raise PickleError("the pickle ends inside of a mark")

    def op_int(self) -> None:
        text = self.line()
        self.stack.append({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text))

    def op_string(self) -> None:
        text = self.line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
            raise PickleError("a STRING has no quotes around it")
        import codecs

        self.stack.append(codecs.escape_decode(text[1:-1])[0].decode("utf-8", "replace"))

    def op_long4(self) -> None:
        data = self.take(self.number(_I4))
        if len(data) > _LONGEST_INTEGER:
            raise TooLargeError("an integer in it is too long to be shown")
        self.stack.append(int.from_bytes(data, "little", signed=True))

    # The memo.

    def op_put(self) -> None:
        self.memo[int(self.line())] = self.stack[-1]

    def op_binput(self) -> None:
        self.memo[self.take(1)[0]] = self.stack[-1]

    def op_long_binput(self) -> None:
        self.memo[self.number(_U4)] = self.stack[-1]

    def op_memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    # Marks: `MARK` puts the stack aside and begins a new one; what needs a mark takes all of it.

    def op_mark(self) -> None:
        self._marks.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self._marks.pop()
        return items

    def op_pop(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    def op_pop_mark(self) -> None:
        self._since_mark()

    # Containers.

    def op_tuple(self) -> None:
        items = self._since_mark()
        self._work += 3
        self.stack.append(tuple(items))

    def op_tuple1(self) -> None:
        self._join(1)

    def op_tuple2(self) -> None:
        self._join(2)

    def op_tuple3(self) -> None:
        self._join(3)

    def _join(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("tuple")
        self._work += 3
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def op_empty_list(self) -> None:
        self._work += 3
        self.stack.append([])

    def op_list(self) -> None:
        items = self._since_mark()
        self._work += 3
        self.stack.append(items)

    def op_frozenset(self) -> None:
        self.op_tuple()  # hashable, as the real one is
        self._note_keys(self.stack[-1])

    op_empty_set = op_empty_list

    def op_append(self) -> None:
        item = self.stack.pop()
        self._extend(self.stack[-1], [item])

    def op_appends(self) -> None:
        items = self._since_mark()
        self._extend(self.stack[-1], items)

    def op_additems(self) -> None:
        self._note_keys(self.stack)
        self.op_appends()

    def op_empty_dict(self) -> None:
        self._work += 3
        self.stack.append({})

    def op_dict(self) -> None:
        items = self._since_mark()
        self.stack.append(self._update({}, items))

    def op_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update(self.stack[-1], [key, value])

    def op_setitems(self) -> None:
        items = self._since_mark()
        self._update(self.stack[-1], items)

    # Globals and what would be done with them.

    def op_global(self) -> None:
        module, name = self.line().decode("utf-8"), self.line().decode("utf-8")
        self.stack.append(self._named(module, name))

    def op_stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise PickleError("a global whose name is not text")
        self.stack.append(self._named(module, name))

    def _named(self, module: str, name: str) -> Name:
        """The name as an unpickler resolves it: pickles up to protocol 2 may use the modules of Python 2."""
        if self._protocol < 3:
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        return self._noted(module, name)

    def _noted(self, module: str, name: str) -> Name:
        found = self._known.get((module, name))
        if found is None:
            self._work += 8
            found = self._known[module, name] = Name(module, name)
            self.names[found] = None
        return found

    def _ext(self, code: int) -> None:
        self.offences[f"it uses entry {code} of the copyreg extension registry"] = None
        self.stack.append(self._noted("copyreg", f"extension {code}"))

    def op_ext1(self) -> None:
        self._ext(self.take(1)[0])

    def op_ext2(self) -> None:
        self._ext(self.number(_U2))

    def op_ext4(self) -> None:
        self._ext(self.number(_I4))

    def op_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self._called(function, _as_tuple(arguments), "reduce"))

    def op_newobj(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self._called(function, _as_tuple(arguments), "new"))

    def op_newobj_ex(self) -> None:
        keywords, arguments, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        given = (*_as_tuple(arguments), *(keywords.values() if isinstance(keywords, dict) else (keywords,)))
        self.stack.append(self._called(function, given, "new"))

    def op_inst(self) -> None:
        module, name = self.line().decode("utf-8"), self.line().decode("utf-8")
        arguments = tuple(self._since_mark())
        self.stack.append(self._called(self._named(module, name), arguments, "reduce"))

    def op_obj(self) -> None:
        function, *arguments = self._since_mark()
        self.stack.append(self._called(function, tuple(arguments), "reduce"))

    def _called(self, function: object, given: tuple[object, ...], how: str) -> object:
        """The result of the call: containers as plain ones, everything else as a `PickleCall`. All are recorded."""
        self._work += 6
        if isinstance(function, Name):
            if not given and function in _MAPPINGS:
                return {}
            if function == GETATTR and len(given) == 2 and isinstance(given[0], Name) and isinstance(given[1], str):
                # The way pickles up to protocol 3 name what is inside of a class; judged like the dotted name.
                return self._noted(given[0].module, f"{given[0].qualname}.{given[1]}")
        call = PickleCall(function, given, how)
        self.calls.append(call)
        return self._plain(call) if isinstance(function, Name) else call

    def _plain(self, call: PickleCall) -> object:
        """The plain container that a call makes, or the call."""
        function, given = call.function, call.arguments
        first = given[0] if given else None
        assert isinstance(function, Name)
        if function in _MAPPINGS:
            pairs = given[-1]
            if isinstance(pairs, dict):
                self._spend(len(pairs))
                return dict(pairs)
            flat = pairs if isinstance(pairs, (list, tuple)) else ()
            if function.qualname == "Counter":
                self._note_keys(flat)
                return {}
            if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in flat):
                self.offences["it makes a dictionary of what are no pairs"] = None
                return call
            return self._update({}, [part for pair in flat for part in pair])
        if function in _SEQUENCES:
            items = first if isinstance(first, (list, tuple)) else ()
            self._spend(len(items))
            if "set" in function.qualname:
                self._note_keys(items)
            return tuple(items) if function == Name("builtins", "frozenset") else list(items)
        if function == _SIZE and isinstance(first, tuple):
            return first
        if function == _ENCODE and isinstance(first, str) and given[1:] == ("latin1",):
            self._spend(len(first) >> 5)
            return first.encode("latin1")  # how protocol 2 writes bytes
        if function in _BYTES:
            if not given:
                return b""
            if isinstance(first, bytes) and len(given) == 1:
                return first
            if isinstance(first, str) and given[1:] in (("latin-1",), ("latin1",)):
                self._spend(len(first) >> 5)
                return first.encode("latin1")
        return call

    def op_build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        self.builds.append((target, state))
        if isinstance(target, PickleCall):
            target.state = state

    def op_persid(self) -> None:
        self.stack.append(Persistent(self.line().decode("utf-8")))

    def op_binpersid(self) -> None:
        """Put a reference to something outside on the stack; a class that the old format keeps with its source is a
        name, and torch compares that source with the one that is here.
        """
        self._work += 3
        identity = self.stack.pop()
        if (
            isinstance(identity, tuple)
            and len(identity) > 1
            and identity[0] == "module"
            and isinstance(identity[1], Name)
        ):
            if not all(isinstance(part, (str, type(None))) for part in identity[2:]):
                self.offences["it keeps a source that is no text"] = None
            self.calls.append(PickleCall(identity[1], (), "new"))
            self.stack.append(identity[1])
            return
        if not _is_storage(identity):
            self.offences["it refers to something outside that is no storage"] = None
        self.stack.append(Persistent(identity))

    def op_next_buffer(self) -> None:
        raise PickleError("opcode NEXT_BUFFER is not allowed in a checkpoint")

    # What is put into containers and objects.

    def _extend(self, target: object, items: Iterable[object]) -> None:
        """Append items to a list or to the result of a call; appending to a global is noted as an offence."""
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, PickleCall):
            if target.items is None:
                target.items = []
            target.items.extend(items)
        elif isinstance(target, Name):
            self.offences[f"it appends to {target.full}"] = None
        else:
            raise PickleError(f"the pickle appends to a {type(target).__name__}")

    def _note_keys(self, values: Iterable[object]) -> None:
        """Note that these objects are hashed, also inside of tuples: a class may have a `__hash__` that does more."""
        level = list(values)
        for _ in range(8):
            for value in level:
                if isinstance(value, PickleCall):
                    value.is_key = True
            level = [part for value in level if isinstance(value, tuple) for part in value]

    def _update(self, target: object, items: list[object]) -> object:
        """Set keys of a dictionary or of the result of a call, and give it back; on a global that is an offence."""
        if len(items) % 2:
            raise PickleError("the pickle sets a key without a value")
        if isinstance(target, Name):
            self.offences[f"it sets items of {target.full}"] = None
            return target
        if isinstance(target, PickleCall) and target.pairs is None:
            target.pairs = {}
        mapping = target.pairs if isinstance(target, PickleCall) else target
        if not isinstance(mapping, dict):
            raise PickleError(f"the pickle sets keys of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, tuple) and not _is_flat(key):
                raise PickleError("the pickle uses a deeply nested tuple as a key")
            if isinstance(key, (PickleCall, tuple)):
                self._note_keys((key,))
            elif key in HOOKS and not isinstance(value, (str, int, float, type(None))):
                self.offences[f"it plants {key}, which the unpickler would call"] = None
            old = mapping.get(key)
            if old is not value and isinstance(old, (Name, PickleCall, Persistent, dict, list, tuple)):
                self.offences["it replaces an entry of a dictionary, which may have been used before"] = None
            mapping[key] = value
        self._spend(len(items))
        return target


_HANDLERS: Final[dict[bytes, Callable[[_Machine], None]]] = {
    # what one expression puts on the stack: numbers, bytes, text, and what is in the memo
    b"J": lambda m: m.stack.append(m.number(_I4)),  # BININT
    b"K": lambda m: m.stack.append(m.take(1)[0]),  # BININT1
    b"M": lambda m: m.stack.append(m.number(_U2)),  # BININT2
    b"L": lambda m: m.stack.append(int(m.line().rstrip(b"L"))),  # LONG
    b"\x8a": lambda m: m.stack.append(int.from_bytes(m.take(m.take(1)[0]), "little", signed=True)),  # LONG1
    b"\x8b": _Machine.op_long4,
    b"T": lambda m: m.stack.append(m.take(m.number(_I4)).decode("utf-8", "replace")),  # BINSTRING
    b"U": lambda m: m.stack.append(m.take(m.take(1)[0]).decode("utf-8", "replace")),  # SHORT_BINSTRING
    b"B": lambda m: m.stack.append(m.take(m.number(_U4))),  # BINBYTES
    b"C": lambda m: m.stack.append(m.take(m.take(1)[0])),  # SHORT_BINBYTES
    b"\x8e": lambda m: m.stack.append(m.take(m.number(_U8))),  # BINBYTES8
    b"\x96": lambda m: m.stack.append(m.take(m.number(_U8))),  # BYTEARRAY8
    b"\x98": lambda m: None,  # READONLY_BUFFER
    b"N": lambda m: m.stack.append(None),  # NONE
    b"\x88": lambda m: m.stack.append(True),  # NEWTRUE
    b"\x89": lambda m: m.stack.append(False),  # NEWFALSE
    b"V": lambda m: m.stack.append(m.line().decode("raw-unicode-escape")),  # UNICODE
    b"\x8c": lambda m: m.stack.append(m.take(m.take(1)[0]).decode("utf-8", "surrogatepass")),  # SHORT_BINUNICODE
    b"X": lambda m: m.stack.append(m.take(m.number(_U4)).decode("utf-8", "surrogatepass")),  # BINUNICODE
    b"\x8d": lambda m: m.stack.append(m.take(m.number(_U8)).decode("utf-8", "surrogatepass")),  # BINUNICODE8
    b"F": lambda m: m.stack.append(float(m.line())),  # FLOAT
    b"G": lambda m: m.stack.append(_F8.unpack(m.take(8))[0]),  # BINFLOAT
    b"g": lambda m: m.stack.append(m.memo[int(m.line())]),  # GET
    b"h": lambda m: m.stack.append(m.memo[m.take(1)[0]]),  # BINGET
    b"j": lambda m: m.stack.append(m.memo[m.number(_U4)]),  # LONG_BINGET
    b"2": lambda m: m.stack.append(m.stack[-1]),  # DUP
    b")": lambda m: m.stack.append(()),  # EMPTY_TUPLE
    # everything else
    b"I": _Machine.op_int, b"S": _Machine.op_string, b"\x97": _Machine.op_next_buffer, b"]": _Machine.op_empty_list,
    b"a": _Machine.op_append, b"e": _Machine.op_appends, b"l": _Machine.op_list, b"t": _Machine.op_tuple,
    b"\x85": _Machine.op_tuple1, b"\x86": _Machine.op_tuple2, b"\x87": _Machine.op_tuple3,
    b"}": _Machine.op_empty_dict, b"d": _Machine.op_dict, b"s": _Machine.op_setitem, b"u": _Machine.op_setitems,
    b"\x8f": _Machine.op_empty_set, b"\x90": _Machine.op_additems, b"\x91": _Machine.op_frozenset,
    b"0": _Machine.op_pop, b"(": _Machine.op_mark, b"1": _Machine.op_pop_mark, b"p": _Machine.op_put,
    b"q": _Machine.op_binput, b"r": _Machine.op_long_binput, b"\x94": _Machine.op_memoize, b"\x82": _Machine.op_ext1,
    b"\x83": _Machine.op_ext2, b"\x84": _Machine.op_ext4, b"c": _Machine.op_global, b"\x93": _Machine.op_stack_global,
    b"R": _Machine.op_reduce, b"b": _Machine.op_build, b"i": _Machine.op_inst, b"o": _Machine.op_obj,
    b"\x81": _Machine.op_newobj, b"\x92": _Machine.op_newobj_ex, b"\x80": _Machine.op_proto, b".": _Machine.op_stop,
    b"\x95": _Machine.op_frame, b"P": _Machine.op_persid, b"Q": _Machine.op_binpersid,
}  # fmt: skip
"""Every opcode of `pickletools`, which takes long to import."""

OPCODES: Final = frozenset(_HANDLERS)


HOOKS: Final = frozenset(
    ("__setstate__", "append", "extend", "add", "__reduce__", "__reduce_ex__", "__class__", "__dict__")
)
"""Attributes of an object that the unpickler looks for and calls, or that make another object of it."""


def _is_storage(identity: object) -> bool:
    """Whether a persistent id has the form that `torch.save` writes; torch reads an attribute of its second part."""
    if not (isinstance(identity, tuple) and len(identity) in (5, 6) and identity[0] == "storage"):
        return False
    kind, *rest = identity[1:]
    parts = [part for value in rest for part in (value if isinstance(value, tuple) else (value,))]
    is_type = isinstance(kind, Name) and f"{kind.module}.".startswith("torch.") and kind.qualname.endswith("Storage")
    return is_type and all(part is None or isinstance(part, (str, int)) for part in parts)


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _is_flat(key: tuple[object, ...]) -> bool:
    """Hashing follows nested tuples on the C stack: a forged key, a million levels deep, would end the process."""
    level: list[object] = [key]
    for _ in range(6):
        level = [part for inner in level if isinstance(inner, tuple) for part in inner]
        if not level:
            return True
        if len(level) > 10_000:
            return False
    return not any(isinstance(part, tuple) for part in level)
