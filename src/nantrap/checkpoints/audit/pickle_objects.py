"""What a pickle holds when it is read and not run: names, calls that were not made, and references to outside."""

from __future__ import annotations

from typing import NamedTuple


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
