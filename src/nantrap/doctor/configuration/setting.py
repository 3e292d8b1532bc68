"""A setting as a file has it, and a group of settings that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal


class _Unknown:
    """The value of a setting that the file does not contain: `auto`, `$LR`, `${x}` without an x."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        return False


UNKNOWN: Final = _Unknown()

Kind = Literal["yaml", "json", "toml", "shell", "constants", "argparse", "call", "optimizer", "composed"]
Role = Literal["trainer", "launcher", "deepspeed", "code"]


@dataclass(frozen=True, slots=True)
class Span:
    """Where the text of a value is in its file: offsets of characters, the end excluded."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Setting:
    """One `name: value`.

    Attributes:
        path: the names from the top of the file, as written.
        names: the same in lower case with underscores, which is what names are compared by.
        key: what the setting means (`lr`, `clip`, ...), or None if the doctor does not use it.
        value: a number, text, bool, None, a list of those, or `UNKNOWN`.
        line: from 1.
        span: where the value can be replaced; None if it is not written there literally.
    """

    path: tuple[str, ...]
    names: tuple[str, ...]
    key: str | None
    value: Any
    file: str
    line: int
    span: Span | None = None

    @property
    def name(self) -> str:
        """`trainer.lr`."""
        return ".".join(self.path)

    @property
    def parent(self) -> tuple[str, ...]:
        """The names of the section of the setting."""
        return self.names[:-1]

    @property
    def known(self) -> bool:
        """Whether the file contains the value."""
        return self.value is not UNKNOWN


@dataclass(frozen=True, slots=True)
class Source:
    """Settings that take effect together: a file, the arguments of one call, the flags of one launch line."""

    file: str
    kind: Kind
    settings: tuple[Setting, ...]
    role: Role = "trainer"
    framework: str = ""
    line: int = 1
    script: str = ""
    """The Python file that a launch line starts."""
    references: tuple[str, ...] = ()
    """Other files that this one names, e.g. a DeepSpeed file."""

    def all(self, key: str) -> Iterator[Setting]:
        """Every setting with this meaning."""
        return (setting for setting in self.settings if setting.key == key)

    def first(self, key: str) -> Setting | None:
        """The setting with this meaning that is nearest to the top of the tree."""
        found = list(self.all(key))
        return min(found, key=lambda setting: (len(setting.names), not _of_training(setting))) if found else None

    def near(self, setting: Setting, key: str) -> Setting | None:
        """The setting with this meaning that shares the most parents with another one."""
        best: tuple[int, int] | None = None
        chosen: Setting | None = None
        for other in self.all(key):
            if other is setting:
                continue
            rank = (shared(setting.names, other.names), -len(other.names))
            if best is None or rank > best:
                best, chosen = rank, other
        return chosen

    def value(self, key: str) -> Any:
        """The value of `first(key)`, or UNKNOWN."""
        found = self.first(key)
        return UNKNOWN if found is None else found.value


def _of_training(setting: Setting) -> bool:
    return any(name.startswith(("train", "optim")) or name == "opt" for name in setting.parent)


def shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many parents two paths have in common."""
    count = 0
    for left, right in zip(one[:-1], other[:-1], strict=False):
        if left != right:
            break
        count += 1
    return count
