"""The versioned JSON of an incident.

JSON has no NaN: non-finite floats are written as the strings "nan", "inf" and "-inf". Fields with their default value
are written too, so that a reader in another language need not know the defaults. Fields a reader does not know survive
in `extra` and are written back at their place.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Literal, TypeVar, Union

from nantrap.errors import FormatError
from nantrap.incident.codes import BY_SLUG
from nantrap.incident.vocabulary import Cause, Incident

SCHEMA_NAME = "nantrap.incident"
SCHEMA_VERSION = 1

NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""How numbers that JSON does not have are spelt, in every file nantrap writes."""

T = TypeVar("T")


def encode_incident(incident: Incident) -> dict[str, Any]:
    """The incident as JSON values."""
    return {"schema": f"{SCHEMA_NAME}/{SCHEMA_VERSION}", **encode(incident)}


def decode_incident(data: Mapping[str, Any]) -> Incident:
    """The incident that these JSON values describe."""
    if not isinstance(data, Mapping):
        raise FormatError(f"an incident is a JSON object, not {_kind(data)}")
    schema = data.get("schema")
    if not isinstance(schema, str) or not schema.startswith(SCHEMA_NAME + "/"):
        raise FormatError(
            f"field schema: expected {SCHEMA_NAME}/{SCHEMA_VERSION}, got {schema!r}; "
            "this is not an incident.json of nantrap"
        )
    return decode(Incident, {key: value for key, value in data.items() if key != "schema"})


def encode(value: Any) -> Any:
    """Plain JSON values for a dataclass of the vocabulary, or for the values of its fields."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        plain = {spec.name: encode(getattr(value, spec.name)) for spec in fields(value) if spec.name != "extra"}
        if isinstance(value, Cause):  # for readers that have no table of codes
            plain["code"] = value.code
            plain["title"] = value.title
        return {**plain, **{k: v for k, v in getattr(value, "extra", {}).items() if k not in plain}}
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{type(value).__name__} cannot be part of an incident")


def decode(cls: type[T], data: Mapping[str, Any], *, path: str = "") -> T:
    """Build `cls` from JSON values; errors name the field by its path."""
    if not isinstance(data, Mapping):
        raise FormatError(f"field {path or '(top)'}: expected an object, got {_kind(data)}")
    hints = _hints(typing.cast(Hashable, cls))
    known: dict[str, Any] = {}
    for spec in fields(cls):  # type: ignore[arg-type]
        if spec.name == "extra":
            continue
        where = f"{path}.{spec.name}" if path else spec.name
        if spec.name in data:
            known[spec.name] = _decode_as(hints[spec.name], data[spec.name], where)
        elif spec.default is MISSING and spec.default_factory is MISSING:
            raise FormatError(f"field {where}: missing")
    derived = {"code", "title"} if cls is Cause and known.get("slug") in BY_SLUG else set()
    extra = {k: v for k, v in data.items() if k not in hints and k not in derived}
    return cls(**known, extra=extra)  # type: ignore[call-arg]


@functools.cache
def _hints(cls: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode_as(hint: Any, value: Any, path: str) -> Any:
    """A value as its declared type wants it; what does not fit is refused by the path of its field."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (only,) = [a for a in arguments if a is not type(None)]
        return _decode_as(only, value, path)
    if origin is Literal:
        if value not in arguments:
            raise FormatError(f"field {path}: expected one of {', '.join(arguments)}; got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise FormatError(f"field {path}: expected a list, got {_kind(value)}")
        return tuple(_decode_as(arguments[0], v, f"{path}[{i}]") for i, v in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise FormatError(f"field {path}: expected an object, got {_kind(value)}")
        return {k: _decode_as(arguments[1], v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            choices = ", ".join(member.value for member in hint)
            raise FormatError(f"field {path}: expected one of {choices}; got {value!r}") from None
    if is_dataclass(hint):
        return decode(typing.cast("type[Any]", hint), value, path=path)
    return _decode_plain(hint, value, path)


def _decode_plain(hint: Any, value: Any, path: str) -> Any:
    """A number, a truth value or a string. NaN and Inf are strings in JSON."""
    if hint is float:
        if isinstance(value, str) and value in NONFINITE:
            return NONFINITE[value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:  # a whole number that no float can hold
                return math.inf if value > 0 else -math.inf
    elif hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif hint in (bool, str):
        if isinstance(value, hint):
            return value
    else:
        raise AssertionError(f"no decoder for {hint} at {path}")
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "a string"}
    raise FormatError(f"field {path}: expected {names[hint]}, got {_kind(value)}")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    shown = f" {value!r}" if isinstance(value, (bool, int, float, str)) else ""
    return names.get(type(value), "an object") + shown
