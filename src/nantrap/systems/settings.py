"""Settings: frozen dataclasses, read from a YAML file or a Python file of constants, changed by dotted names.

A Python file is read, never run: `LEARNING_RATE = 1e-4` is the setting `learning_rate`. Every value is converted to
the type its field declares, and nothing is ignored: an unknown key or a value of the wrong type is an error that names
it. YAML reads `5e-5` (without a dot) as text; here it is the number it was meant to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from nantrap.checkpoints.store.config_rate import read_constants
from nantrap.errors import FormatError, UsageError

S = TypeVar("S")


def read_settings(kind: type[S], path: Path) -> S:
    """The settings in a file; what it leaves out keeps its default."""
    try:
        text = path.read_text(encoding="utf-8")
        data = read_constants(text, path, strict=True) if path.suffix == ".py" else yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise FormatError(f"{path}: not YAML: {error}") from None
    return settings_from(kind, {} if data is None else data, where=str(path))


def settings_from(kind: type[S], data: Any, *, where: str = "settings") -> S:
    """The settings in a mapping, which may be nested as the dataclasses are."""
    if not isinstance(data, Mapping):
        raise FormatError(f"{where}: expected a mapping, got {data!r}")
    hints = get_type_hints(kind)
    known = {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise FormatError(f"{where}: unknown setting {key!r}; there are {', '.join(sorted(known))}")
    return kind(**{key: _converted(hints[key], value, where=f"{where}: {key}") for key, value in data.items()})


def with_changes(settings: S, changes: Mapping[str, Any]) -> S:
    """The settings with some replaced, by dotted name: `{"training.learning_rate": 1e-4}`."""
    for name, value in changes.items():
        settings = _replaced(settings, name.split("."), value, name)
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


def _replaced(settings: Any, names: list[str], value: Any, where: str) -> Any:
    hints = get_type_hints(type(settings))
    head, *rest = names
    if head not in hints:
        raise UsageError(f"no setting is called {where!r}; there are {', '.join(sorted(hints))}")
    if rest and not dataclasses.is_dataclass(getattr(settings, head)):
        raise UsageError(f"no setting is called {where!r}: {head} is a value")
    new = _replaced(getattr(settings, head), rest, value, where) if rest else _converted(hints[head], value, where)
    return dataclasses.replace(settings, **{head: new})


def _converted(kind: Any, value: Any, where: str) -> Any:
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
