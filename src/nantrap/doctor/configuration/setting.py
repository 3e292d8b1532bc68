"""A setting as a file has it, what its value means, and a group of settings that take effect together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_UNRESOLVED: Final = re.compile(r"\$\{|\$\(|\$[A-Za-z_0-9@*#]|\{\{|<[a-z_ ]+>|^`")
_OPEN_WORDS: Final = frozenset({"auto", "???", "todo", "fixme"})
_NOTHING: Final = frozenset({"null", "none", "~", ""})
_NOT_ADAM: Final = (
    "prodigy", "dadam", "dadapt", "d_adapt", "muon", "lamb", "lars", "adamp", "came", "sophia", "sparseadam",
)  # fmt: skip


class _Unknown:
    """The value of a setting that the file does not contain: `auto`, `$LR`, `${x}` without an x."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        return False


UNKNOWN: Final = _Unknown()

SourceKind = Literal["yaml", "json", "toml", "shell", "constants", "argparse", "call", "optimizer", "composed"]
SourceRole = Literal["trainer", "launcher", "deepspeed", "code"]


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
class SettingSource:
    """Settings that take effect together: a file, the arguments of one call, the flags of one launch line."""

    file: str
    kind: SourceKind
    settings: tuple[Setting, ...]
    role: SourceRole = "trainer"
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


def role_of(setting: Setting) -> str:
    """The meaning of a setting; a temperature of a student or teacher is `student_temperature`, ..."""
    name = setting.names[-1]
    role = next((role for role in ("student_", "teacher_") if role[:-1] in name), "")
    return role + setting.key if setting.key == "temperature" else setting.key or ""


def first_by_role(source: SettingSource, role: str) -> Setting | None:
    """`source.first`, with the temperatures of student and teacher apart."""
    if not role.endswith("temperature"):
        return source.first(role)
    return next((each for each in source.all("temperature") if role_of(each) == role), None)


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


def scalar(text: str) -> Any:
    """What an unquoted word in a configuration means: a number, a switch, nothing, text, or `UNKNOWN`."""
    word = text.strip()
    low = word.lower()
    if low in _OPEN_WORDS or _UNRESOLVED.search(word):
        return UNKNOWN
    if low in _NOTHING:
        return None
    if low == "true":
        return True
    if low == "false":
        return False
    found = as_number_text(word)
    return word if found is None else found


def quoted(text: str) -> Any:
    """What a text in quotes means: a number in quotes is a number, `auto` is unknown, anything else is the text."""
    found = scalar(text)
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return found if found is UNKNOWN or is_number else text


def as_number_text(word: str) -> float | int | None:
    """A number that is written as text (`1e-5` is text to YAML), or None."""
    if _NUMBER.match(word):
        plain = word.replace("_", "")
        try:
            return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
        except ValueError:
            return None
    if word.lower().lstrip("+-").lstrip(".") in ("inf", "infinity"):
        return -math.inf if word.startswith("-") else math.inf
    return None


def number(value: Any) -> float | None:
    """A finite or infinite number, or None if it is none or unknown."""
    if isinstance(value, bool) or value is None or value is UNKNOWN:
        return None
    if isinstance(value, (int, float)):
        return None if isinstance(value, float) and math.isnan(value) else float(value)
    if isinstance(value, str):
        found = as_number_text(value.strip())
        return None if found is None else float(found)
    return None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found == int(found) else None


def switch(value: Any) -> bool | None:
    """True or False, or None if the value is not a switch or unknown."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        low = value.strip().lower()
        if low in ("true", "yes", "on", "1", "enabled"):
            return True
        if low in ("false", "no", "off", "0", "disabled"):
            return False
    return None


def is_adam(name: Any) -> bool | None:
    """Whether an optimizer belongs to the Adam family; None if its name does not show it."""
    if not isinstance(name, str):
        return None
    low = name.lower().rsplit(".", 1)[-1]
    if not low:
        return None
    if any(word in low for word in _NOT_ADAM):
        return False
    if "adam" in low:
        return True
    return False if any(word in low for word in ("sgd", "rmsprop", "adagrad", "adadelta", "lion", "lbfgs")) else None
