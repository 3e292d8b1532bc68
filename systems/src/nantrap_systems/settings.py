"""Settings: frozen dataclasses, read from a file, changed by dotted names.

A file is YAML, a Python file of constants, or a shell script. Neither Python nor shell is run: `LEARNING_RATE = 1e-4`
and `LEARNING_RATE=1e-4` are the setting `learning_rate`. Every value is converted to the type its field declares, and
nothing is ignored: an unknown key or a value of the wrong type is an error that names it. (A shell script does more
than setting values, so there other variables are left alone.) YAML reads `5e-5` (without a dot) as text; here it is
the number it was meant to be.

A dataclass may have `ALIASES`: other names for its fields, as a project's own files write them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import yaml

from nantrap.checkpoints.store.config_rate import read_constants
from nantrap.errors import FormatError, UsageError

S = TypeVar("S")


class Length(NamedTuple):
    """How long the settings say that a run is, how many of its steps are an epoch, and the number of the checkpoint
    from which they say to continue; 0 for none."""

    steps: int
    epoch: int = 100
    milestone: int = 0


class Alias(NamedTuple):
    """Another name: the setting it means, by dotted name, and how its value is converted."""

    setting: str
    convert: Callable[[Any], Any] = lambda value: value


def read_settings(kind: type[S], path: Path) -> S:
    """The settings in a file; what it leaves out keeps its default."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".sh":
            known = {each.name for each in dataclasses.fields(kind)} | set(_aliases(kind))  # type: ignore[arg-type]
            data: Any = {name: value for name, value in read_variables(text).items() if name in known}
        elif path.suffix == ".py":
            data = read_constants(text, path, strict=True)
        else:
            data = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: not YAML: {error}") from None
    return settings_from(kind, {} if data is None else data, where=str(path))


_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")
_VARIABLE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s#;]*)\s*(?:[#;].*)?$")


def read_variables(text: str) -> dict[str, str]:
    """The variables that a shell script sets, by name in small letters; the script is read, not run.

    `LR=${LR:-1e-4}` is 1e-4: what the variable is unless the environment has another value.
    """
    found = {}
    for line in text.splitlines():
        match = _VARIABLE.match(line)
        if match is None:
            continue
        value = match[2].strip("\"'")
        default = _DEFAULT.fullmatch(value)
        value = default[1] if default else value
        if "$" not in value and "`" not in value:
            found[match[1].lower()] = value
    return found


def settings_from(kind: type[S], data: Any, *, where: str = "settings") -> S:
    """The settings in a mapping, which may be nested as the dataclasses are."""
    if not isinstance(data, Mapping):
        raise FormatError(f"{where}: expected a mapping, got {data!r}")
    hints, aliases = get_type_hints(kind), _aliases(kind)
    known = {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    plain, renamed = {}, {}
    for key, value in data.items():
        if key in aliases or str(key).partition(".")[0] in known - {key}:  # or a dotted name: `optimizer.lr: 5e-5`
            renamed[str(key)] = value
        elif key in known:
            plain[key] = _converted(hints[key], value, where=f"{where}: {key}")
        else:
            raise FormatError(f"{where}: unknown setting {key!r}; there are {', '.join(sorted(known | set(aliases)))}")
    return with_changes(kind(**plain), renamed, where=f"{where}: ")


def write_settings(settings: Any, path: Path) -> None:
    """Write settings in the format of the file's name: YAML, or Python constants."""
    values = dataclasses.asdict(settings)
    if path.suffix == ".py":
        text = "".join(f"{name.upper()} = {value!r}\n" for name, value in values.items())
    else:
        text = yaml.safe_dump(values, sort_keys=False)
    path.write_text(text, encoding="utf-8")


def with_changes(settings: S, changes: Mapping[str, Any], *, where: str = "") -> S:
    """The settings with some replaced, by dotted name: `{"training.learning_rate": 1e-4}`."""
    for name, value in changes.items():
        settings = _replaced(settings, name.split("."), value, where + name)
    return settings


def parse_changes(pairs: Iterable[str]) -> dict[str, str]:
    """`["training.batch_size=8"]` as a mapping, for a command line."""
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"{pair!r}: expected NAME=VALUE, e.g. training.batch_size=8")
        changes[name] = value
    return changes


def _aliases(kind: Any) -> Mapping[str, Alias]:
    aliases: Mapping[str, Alias] = getattr(kind, "ALIASES", {})
    return aliases


def _replaced(settings: Any, names: list[str], value: Any, where: str) -> Any:
    """The settings with one of them replaced, found by its dotted name or an alias."""
    hints = {each.name: get_type_hints(type(settings))[each.name] for each in dataclasses.fields(settings)}
    head, *rest = names
    alias = None if rest else _aliases(type(settings)).get(head)
    if alias is not None:
        try:
            value = alias.convert(value)
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"{where}: cannot be {value!r}") from None
        head, *rest = alias.setting.split(".")
    if head not in hints:
        raise UsageError(f"no setting is called {where!r}; there are {', '.join(sorted(hints))}")
    if rest and not dataclasses.is_dataclass(getattr(settings, head)):
        raise UsageError(f"no setting is called {where!r}: {head} is a value")
    new = _replaced(getattr(settings, head), rest, value, where) if rest else _converted(hints[head], value, where)
    return dataclasses.replace(settings, **{head: new})


def _converted(kind: Any, value: Any, where: str) -> Any:
    """A value as the type of its setting; raises `FormatError` that names it."""
    if dataclasses.is_dataclass(kind):
        return value if isinstance(value, kind) else settings_from(kind, value, where=where)  # type: ignore[arg-type]
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int and not isinstance(value, bool) and int(value) == float(value):
            return int(value)
        if kind is float and not isinstance(value, bool):
            return float(value)
        if kind is str and isinstance(value, str):
            return value
    except (KeyError, TypeError, ValueError):
        pass
    raise FormatError(f"{where}: expected {kind.__name__}, got {value!r}")
