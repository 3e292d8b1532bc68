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

from nantrap.checkpoints.audit.pickle_objects import (
    I4,
    MOST_WORK,
    U2,
    Call,
    Name,
    Persistent,
    Pickle,
    PickleError,
    Stack,
    TooLargeError,
)

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

    def op_empty_tuple(self) -> None:
        self._stack.append(())

    def op_tuple(self) -> None:
        items = self._since_mark()
        self._work += 3
        self._stack.append(tuple(items))

    def op_tuple1(self) -> None:
        self._join(1)

    def op_tuple2(self) -> None:
        self._join(2)

    def op_tuple3(self) -> None:
        self._join(3)

    def _join(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("tuple")
        self._work += 3
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def op_empty_list(self) -> None:
        self._work += 3
        self._stack.append([])

    def op_list(self) -> None:
        items = self._since_mark()
        self._work += 3
        self._stack.append(items)

    def op_frozenset(self) -> None:
        self.op_tuple()  # hashable, as the real one is

    op_empty_set = op_empty_list

    def op_append(self) -> None:
        item = self._stack.pop()
        self._extend(self._stack[-1], [item])

    def op_appends(self) -> None:
        items = self._since_mark()
        self._extend(self._stack[-1], items)

    op_additems = op_appends

    def op_empty_dict(self) -> None:
        self._work += 3
        self._stack.append({})

    def op_dict(self) -> None:
        items = self._since_mark()
        self._stack.append(self._update({}, items))

    def op_setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update(self._stack[-1], [key, value])

    def op_setitems(self) -> None:
        items = self._since_mark()
        self._update(self._stack[-1], items)

    # Globals and what would be done with them.

    def op_global(self) -> None:
        module, name = self._line().decode("utf-8"), self._line().decode("utf-8")
        self._stack.append(self._named(module, name))

    def op_stack_global(self) -> None:
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

    def op_ext1(self) -> None:
        self._ext(self._bytes(1)[0])

    def op_ext2(self) -> None:
        self._ext(self._number(U2))

    def op_ext4(self) -> None:
        self._ext(self._number(I4))

    def op_reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, _as_tuple(arguments), "reduce"))

    def op_newobj(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, _as_tuple(arguments), "new"))

    def op_newobj_ex(self) -> None:
        keywords, arguments, function = self._stack.pop(), self._stack.pop(), self._stack.pop()
        given = (*_as_tuple(arguments), *(keywords.values() if isinstance(keywords, dict) else (keywords,)))
        self._stack.append(self._called(function, given, "new"))

    def op_inst(self) -> None:
        module, name = self._line().decode("utf-8"), self._line().decode("utf-8")
        arguments = tuple(self._since_mark())
        self._stack.append(self._called(self._named(module, name), arguments, "reduce"))

    def op_obj(self) -> None:
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

    def op_build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        self.builds.append((target, state))
        if isinstance(target, Call):
            target.state = state
            target.is_filled = True

    def op_persid(self) -> None:
        self._stack.append(Persistent(self._line().decode("utf-8")))

    def op_binpersid(self) -> None:
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

    def op_next_buffer(self) -> None:
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
    b"I": _Machine.op_int, b"J": _Machine.op_binint, b"K": _Machine.op_binint1, b"M": _Machine.op_binint2,
    b"L": _Machine.op_long, b"\x8a": _Machine.op_long1, b"\x8b": _Machine.op_long4, b"S": _Machine.op_string,
    b"T": _Machine.op_binstring, b"U": _Machine.op_short_binstring, b"B": _Machine.op_binbytes,
    b"C": _Machine.op_short_binbytes, b"\x8e": _Machine.op_binbytes8, b"\x96": _Machine.op_bytearray8,
    b"\x97": _Machine.op_next_buffer, b"\x98": _Machine.op_readonly_buffer, b"N": _Machine.op_none,
    b"\x88": _Machine.op_newtrue, b"\x89": _Machine.op_newfalse, b"V": _Machine.op_unicode,
    b"\x8c": _Machine.op_short_binunicode, b"X": _Machine.op_binunicode, b"\x8d": _Machine.op_binunicode8,
    b"F": _Machine.op_float, b"G": _Machine.op_binfloat, b"]": _Machine.op_empty_list, b"a": _Machine.op_append,
    b"e": _Machine.op_appends, b"l": _Machine.op_list, b")": _Machine.op_empty_tuple, b"t": _Machine.op_tuple,
    b"\x85": _Machine.op_tuple1, b"\x86": _Machine.op_tuple2, b"\x87": _Machine.op_tuple3, b"}": _Machine.op_empty_dict,
    b"d": _Machine.op_dict, b"s": _Machine.op_setitem, b"u": _Machine.op_setitems, b"\x8f": _Machine.op_empty_set,
    b"\x90": _Machine.op_additems, b"\x91": _Machine.op_frozenset, b"0": _Machine.op_pop, b"2": _Machine.op_dup,
    b"(": _Machine.op_mark, b"1": _Machine.op_pop_mark, b"g": _Machine.op_get, b"h": _Machine.op_binget,
    b"j": _Machine.op_long_binget, b"p": _Machine.op_put, b"q": _Machine.op_binput, b"r": _Machine.op_long_binput,
    b"\x94": _Machine.op_memoize, b"\x82": _Machine.op_ext1, b"\x83": _Machine.op_ext2, b"\x84": _Machine.op_ext4,
    b"c": _Machine.op_global, b"\x93": _Machine.op_stack_global, b"R": _Machine.op_reduce, b"b": _Machine.op_build,
    b"i": _Machine.op_inst, b"o": _Machine.op_obj, b"\x81": _Machine.op_newobj, b"\x92": _Machine.op_newobj_ex,
    b"\x80": _Machine.op_proto, b".": _Machine.op_stop, b"\x95": _Machine.op_frame, b"P": _Machine.op_persid,
    b"Q": _Machine.op_binpersid,
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
