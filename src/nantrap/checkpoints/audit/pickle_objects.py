"""What a pickle holds when it is read and not run: names, calls that were not made, and references to outside.

At the end is the stack on which `pickles` follows the opcodes.
"""

from __future__ import annotations

import struct
from typing import IO, Any, Final, NamedTuple


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


class Call:
    """What an unpickler would have called, with everything the pickle then put into the result.

    `how` is the opcode: `reduce` calls the function, `new` makes an instance with `cls.__new__` alone. `is_filled`:
    the result is given a state, through its `__setstate__` if it has one.
    """

    __slots__ = ("arguments", "function", "how", "is_filled", "items", "pairs", "state")

    def __init__(self, function: object, arguments: tuple[object, ...], how: str = "reduce") -> None:
        self.function = function
        self.arguments = arguments
        self.how = how
        self.state: object = None
        self.is_filled = False
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
        value: the saved object, with `Call` in place of what would be called.
        names: the globals it names, in the order of their first use.
        calls: every call, in the order of the unpickler; empty containers are left out.
        builds: every object that would be given a state, with the state.
        offences: what no pickler writes (a global that is given a state), in words.
    """

    value: object
    names: tuple[Name, ...]
    calls: tuple[Call, ...] = ()
    builds: tuple[tuple[object, object], ...] = ()
    offences: tuple[str, ...] = ()


# ---- The stack of an unpickler, and the opcodes that only put plain values on it: numbers, text, bytes, memo, marks.

MOST_WORK: Final = 16_000_000
"""Opcodes, with containers counted four times: about 400 MB of objects, and a few seconds."""
_LONGEST_LINE = 1 << 20

U2, U4, U8, I4 = (struct.Struct(layout) for layout in ("<H", "<I", "<Q", "<i"))
F8 = struct.Struct(">d")


class Stack:
    """The stack, the memo and the marks of one pickle, and how much work it was so far.

    Args:
        file: open at the start of the pickle.
        size: no argument can be longer than this many bytes; `None` if that is not known.
    """

    def __init__(self, file: IO[bytes], size: int | None) -> None:
        self._file = file
        self._size = 1 << 62 if size is None else size
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._protocol = 0
        self._work = 0

    def _spend(self, count: int) -> None:
        """A copy costs as much as it has items, or a few bytes of pickle could copy gigabytes."""
        self._work += count
        if self._work > MOST_WORK:
            raise TooLargeError("the pickle describes more objects than are read (about 400 MB of them)")

    # Arguments.

    def _bytes(self, count: int) -> bytes:
        if count < 0:
            raise PickleError(f"an argument has a negative length ({count})")
        data = self._file.read(count) if count <= self._size else b""
        if len(data) < count:
            raise PickleError(f"not enough data: expected {count:,} bytes", truncated=True)
        self._work += count >> 5
        return data

    def _line(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise PickleError("not enough data: a line does not end", truncated=len(line) < _LONGEST_LINE)
        return line[:-1]

    def _number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack(self._bytes(layout.size))[0]
        return value

    # Values.

    def op_proto(self) -> None:
        self._protocol = self._bytes(1)[0]
        if self._protocol > 5:
            raise PickleError(f"pickle protocol {self._protocol} is unknown")

    def op_frame(self) -> None:
        self._bytes(8)

    def op_stop(self) -> None:
        if self._marks:
            raise PickleError("the pickle ends inside of a mark")

    def op_none(self) -> None:
        self._stack.append(None)

    def op_newtrue(self) -> None:
        self._stack.append(True)

    def op_newfalse(self) -> None:
        self._stack.append(False)

    def op_int(self) -> None:
        text = self._line()
        self._stack.append({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text))

    def op_binint(self) -> None:
        self._stack.append(self._number(I4))

    def op_binint1(self) -> None:
        self._stack.append(self._bytes(1)[0])

    def op_binint2(self) -> None:
        self._stack.append(self._number(U2))

    def op_long(self) -> None:
        self._stack.append(int(self._line().rstrip(b"L")))

    def op_long1(self) -> None:
        self._stack.append(int.from_bytes(self._bytes(self._bytes(1)[0]), "little", signed=True))

    def op_long4(self) -> None:
        self._stack.append(int.from_bytes(self._bytes(self._number(I4)), "little", signed=True))

    def op_float(self) -> None:
        self._stack.append(float(self._line()))

    def op_binfloat(self) -> None:
        self._stack.append(F8.unpack(self._bytes(8))[0])

    def op_string(self) -> None:
        text = self._line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
            raise PickleError("a STRING has no quotes around it")
        import codecs

        self._stack.append(codecs.escape_decode(text[1:-1])[0].decode("utf-8", "replace"))

    def op_binstring(self) -> None:
        self._stack.append(self._bytes(self._number(I4)).decode("utf-8", "replace"))

    def op_short_binstring(self) -> None:
        self._stack.append(self._bytes(self._bytes(1)[0]).decode("utf-8", "replace"))

    def op_binbytes(self) -> None:
        self._stack.append(self._bytes(self._number(U4)))

    def op_short_binbytes(self) -> None:
        self._stack.append(self._bytes(self._bytes(1)[0]))

    def op_binbytes8(self) -> None:
        self._stack.append(self._bytes(self._number(U8)))

    op_bytearray8 = op_binbytes8

    def op_unicode(self) -> None:
        self._stack.append(self._line().decode("raw-unicode-escape"))

    def op_binunicode(self) -> None:
        self._stack.append(self._bytes(self._number(U4)).decode("utf-8", "surrogatepass"))

    def op_short_binunicode(self) -> None:
        self._stack.append(self._bytes(self._bytes(1)[0]).decode("utf-8", "surrogatepass"))

    def op_binunicode8(self) -> None:
        self._stack.append(self._bytes(self._number(U8)).decode("utf-8", "surrogatepass"))

    def op_readonly_buffer(self) -> None:
        pass

    # The memo.

    def op_put(self) -> None:
        self._memo[int(self._line())] = self._stack[-1]

    def op_binput(self) -> None:
        self._memo[self._bytes(1)[0]] = self._stack[-1]

    def op_long_binput(self) -> None:
        self._memo[self._number(U4)] = self._stack[-1]

    def op_memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def op_get(self) -> None:
        self._stack.append(self._memo[int(self._line())])

    def op_binget(self) -> None:
        self._stack.append(self._memo[self._bytes(1)[0]])

    def op_long_binget(self) -> None:
        self._stack.append(self._memo[self._number(U4)])

    # Marks: `MARK` puts the stack aside and begins a new one; what needs a mark takes all of it.

    def op_mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def op_pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    def op_pop_mark(self) -> None:
        self._since_mark()

    def op_dup(self) -> None:
        self._stack.append(self._stack[-1])
