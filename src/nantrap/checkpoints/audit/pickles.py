"""A pickle is read here, never run.

This module follows the opcodes with a stack and a memo, as an unpickler does, but a global becomes a `Name`, and what
an unpickler would call becomes a `Call` that remembers function and arguments. Nothing is imported, nothing is called,
no attribute is set: `os.system("rm -rf /")` comes out as `Call(Name("os", "system"), ("rm -rf /",))`. Dictionaries,
lists, tuples, numbers and strings come out as themselves. `trust` judges what was found.

Where Python's unpickler would raise, this one may raise or continue, but it never sees less: every global, every call
and every object that gets a state is recorded.
"""

from __future__ import annotations

import io
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable, Iterable
from typing import IO, Final

from nantrap.checkpoints.audit.pickle_objects import Call, Name, Persistent, Pickle, PickleError, TooLargeError
from nantrap.checkpoints.audit.pickle_stack import I4, MOST_WORK, U2, Stack

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
    return Pickle(value, tuple(machine.names), tuple(machine.calls), tuple(machine.builds), tuple(machine.offences))


class _Machine(Stack):
    """Follows the opcodes of one pickle, and notes what an unpickler would import, call and fill."""

    def __init__(self, file: IO[bytes], size: int | None) -> None:
        super().__init__(file, size)
        self.names: dict[Name, None] = {}
        self.calls: list[Call] = []
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
            if self._work > MOST_WORK:
                raise TooLargeError("the pickle describes more objects than are read (about 400 MB of them)")
        return self._stack[-1]

    # Containers.

    def _empty_tuple(self) -> None:
        self._stack.append(())

    def _tuple(self) -> None:
        items = self._since_mark()
        self._work += 3
        self._stack.append(tuple(items))

    def _tuple1(self) -> None:
        self._join(1)

    def _tuple2(self) -> None:
        self._join(2)

    def _tuple3(self) -> None:
        self._join(3)

    def _join(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("tuple")
        self._work += 3
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _empty_list(self) -> None:
        self._work += 3
        self._stack.append([])

    def _list(self) -> None:
        items = self._since_mark()
        self._work += 3
        self._stack.append(items)

    def _frozenset(self) -> None:
        self._tuple()  # hashable, as the real one is

    _empty_set = _empty_list

    def _append(self) -> None:
        item = self._stack.pop()
        self._extend(self._stack[-1], [item])

    def _appends(self) -> None:
        items = self._since_mark()
        self._extend(self._stack[-1], items)

    _additems = _appends

    def _empty_dict(self) -> None:
        self._work += 3
        self._stack.append({})

    def _dict(self) -> None:
        items = self._since_mark()
        self._stack.append(self._update({}, items))

    def _setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update(self._stack[-1], [key, value])

    def _setitems(self) -> None:
        items = self._since_mark()
        self._update(self._stack[-1], items)

    # Globals and what would be done with them.

    def _global(self) -> None:
        module, name = self._line().decode("utf-8"), self._line().decode("utf-8")
        self._stack.append(self._named(module, name))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise PickleError("a global whose name is not text")
        self._stack.append(self._named(module, name))

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
        self._stack.append(self._noted("copyreg", f"extension {code}"))

    def _ext1(self) -> None:
        self._ext(self._bytes(1)[0])

    def _ext2(self) -> None:
        self._ext(self._number(U2))

    def _ext4(self) -> None:
        self._ext(self._number(I4))

    def _reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, _as_tuple(arguments), "reduce"))

    def _newobj(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, _as_tuple(arguments), "new"))

    def _newobj_ex(self) -> None:
        keywords, arguments, function = self._stack.pop(), self._stack.pop(), self._stack.pop()
        given = (*_as_tuple(arguments), *(keywords.values() if isinstance(keywords, dict) else (keywords,)))
        self._stack.append(self._called(function, given, "new"))

    def _inst(self) -> None:
        module, name = self._line().decode("utf-8"), self._line().decode("utf-8")
        arguments = tuple(self._since_mark())
        self._stack.append(self._called(self._named(module, name), arguments, "reduce"))

    def _obj(self) -> None:
        function, *arguments = self._since_mark()
        self._stack.append(self._called(function, tuple(arguments), "reduce"))

    def _called(self, function: object, given: tuple[object, ...], how: str) -> object:
        """The result of the call: containers as plain ones, everything else as a `Call`. All are recorded."""
        self._work += 6
        if isinstance(function, Name):
            if not given and function in _MAPPINGS:
                return {}
            if function == GETATTR and len(given) == 2 and isinstance(given[0], Name) and isinstance(given[1], str):
                # The way pickles up to protocol 3 name what is inside of a class; judged like the dotted name.
                return self._noted(given[0].module, f"{given[0].qualname}.{given[1]}")
        call = Call(function, given, how)
        self.calls.append(call)
        return self._plain(call) if isinstance(function, Name) else call

    def _plain(self, call: Call) -> object:
        """The plain container that a call makes, or the call."""
        function, given = call.function, call.arguments
        first = given[0] if given else None
        if function in _MAPPINGS:
            pairs = given[-1]
            if isinstance(pairs, dict):
                self._spend(len(pairs))
                return dict(pairs)
            flat = pairs if isinstance(pairs, (list, tuple)) else ()
            return self._update({}, [part for pair in flat for part in _as_tuple(pair)])
        if function in _SEQUENCES:
            items = first if isinstance(first, (list, tuple)) else ()
            self._spend(len(items))
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

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        self.builds.append((target, state))
        if isinstance(target, Call):
            target.state = state
            target.is_filled = True

    def _persid(self) -> None:
        self._stack.append(Persistent(self._line().decode("utf-8")))

    def _binpersid(self) -> None:
        """Put a reference to something outside on the stack; a class that the old format keeps with its source is a
        name.
        """
        self._work += 3
        identity = self._stack.pop()
        if (
            isinstance(identity, tuple)
            and len(identity) > 1
            and identity[0] == "module"
            and isinstance(identity[1], Name)
        ):
            self._stack.append(identity[1])  # the old format of torch keeps a module's source with its class
            return
        self._stack.append(Persistent(identity))

    def _next_buffer(self) -> None:
        raise PickleError("opcode NEXT_BUFFER is not allowed in a checkpoint")

    # What is put into containers and objects.

    def _extend(self, target: object, items: Iterable[object]) -> None:
        """Append items to a list or to the result of a call; appending to a global is noted as an offence."""
        if isinstance(target, list):
            target.extend(items)
        elif isinstance(target, Call):
            if target.items is None:
                target.items = []
            target.items.extend(items)
        elif isinstance(target, Name):
            self.offences[f"it appends to {target.full}"] = None
        else:
            raise PickleError(f"the pickle appends to a {type(target).__name__}")

    def _update(self, target: object, items: list[object]) -> object:
        """Set keys of a dictionary or of the result of a call, and give it back; on a global that is an offence."""
        if len(items) % 2:
            raise PickleError("the pickle sets a key without a value")
        if isinstance(target, Name):
            self.offences[f"it sets items of {target.full}"] = None
            return target
        if isinstance(target, Call) and target.pairs is None:
            target.pairs = {}
        mapping = target.pairs if isinstance(target, Call) else target
        if not isinstance(mapping, dict):
            raise PickleError(f"the pickle sets keys of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, tuple) and not _is_flat(key):
                raise PickleError("the pickle uses a deeply nested tuple as a key")
            mapping[key] = value
        self._spend(len(items))
        return target


_HANDLERS: Final[dict[bytes, Callable[[_Machine], None]]] = {
    b"I": _Machine._int, b"J": _Machine._binint, b"K": _Machine._binint1, b"M": _Machine._binint2,
    b"L": _Machine._long, b"\x8a": _Machine._long1, b"\x8b": _Machine._long4, b"S": _Machine._string,
    b"T": _Machine._binstring, b"U": _Machine._short_binstring, b"B": _Machine._binbytes,
    b"C": _Machine._short_binbytes, b"\x8e": _Machine._binbytes8, b"\x96": _Machine._bytearray8,
    b"\x97": _Machine._next_buffer, b"\x98": _Machine._readonly_buffer, b"N": _Machine._none,
    b"\x88": _Machine._newtrue, b"\x89": _Machine._newfalse, b"V": _Machine._unicode,
    b"\x8c": _Machine._short_binunicode, b"X": _Machine._binunicode, b"\x8d": _Machine._binunicode8,
    b"F": _Machine._float, b"G": _Machine._binfloat, b"]": _Machine._empty_list, b"a": _Machine._append,
    b"e": _Machine._appends, b"l": _Machine._list, b")": _Machine._empty_tuple, b"t": _Machine._tuple,
    b"\x85": _Machine._tuple1, b"\x86": _Machine._tuple2, b"\x87": _Machine._tuple3, b"}": _Machine._empty_dict,
    b"d": _Machine._dict, b"s": _Machine._setitem, b"u": _Machine._setitems, b"\x8f": _Machine._empty_set,
    b"\x90": _Machine._additems, b"\x91": _Machine._frozenset, b"0": _Machine._pop, b"2": _Machine._dup,
    b"(": _Machine._mark, b"1": _Machine._pop_mark, b"g": _Machine._get, b"h": _Machine._binget,
    b"j": _Machine._long_binget, b"p": _Machine._put, b"q": _Machine._binput, b"r": _Machine._long_binput,
    b"\x94": _Machine._memoize, b"\x82": _Machine._ext1, b"\x83": _Machine._ext2, b"\x84": _Machine._ext4,
    b"c": _Machine._global, b"\x93": _Machine._stack_global, b"R": _Machine._reduce, b"b": _Machine._build,
    b"i": _Machine._inst, b"o": _Machine._obj, b"\x81": _Machine._newobj, b"\x92": _Machine._newobj_ex,
    b"\x80": _Machine._proto, b".": _Machine._stop, b"\x95": _Machine._frame, b"P": _Machine._persid,
    b"Q": _Machine._binpersid,
}  # fmt: skip
"""Every opcode of `pickletools`, which takes long to import."""

OPCODES: Final = frozenset(_HANDLERS)


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
