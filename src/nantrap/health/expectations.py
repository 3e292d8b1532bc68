"""A plan: what a run is expected to do, as a whole and stage by stage. Read from YAML; nothing in it is executed.

steps_per_epoch: 594              # for a journal that has no epochs
run:                              # the whole run
  lr: {peak: 1.0e-4}
stages:
  - name: validate stability
    epochs: 1-5                   # or steps: 0-3000
    loss: falls                   # falls, stable (does not rise), or limits: {below: 5}
    incidents: 0                  # at most this many
    applied: 0.99                 # at least this share of the steps
    values: {"*alpha*": {below: 0.1}, grad_norm: {below: 10}}
  - name: continue
    epochs: 6-30
    loss: stable
    evaluation: {accuracy: improves}
then: NUM_LAYERS 2 -> 4, LEARNING_RATE x 1.5, BATCH_SIZE x 1.5
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nantrap.errors import FormatError, UsageError

_SPAN = re.compile(r"\s*(\d[\d_,]*)\s*(?:(?:-|–|\.\.|to)\s*(\d[\d_,]*)?)?(\+)?\s*$")
_KEYS = ("loss", "incidents", "applied", "spikes", "lr", "values", "watch", "evaluation")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a value; `None` is no bound."""

    above: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a part of a run. `None` and empty: nothing in particular."""

    loss: Literal["falls", "stable"] | Limits | None = None
    incidents: int | None = None
    applied: float | None = None
    spikes: int | None = None
    lr: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Limits] = field(default_factory=dict)
    evaluation: Mapping[str, Limits | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A part of a run and what is expected of it; `first` to `last`, both included, of epochs or of steps."""

    name: str
    unit: Literal["epochs", "steps"]
    first: int
    last: int | None
    expected: Expected

    @property
    def span(self) -> str:
        """`epochs 1-5`."""
        return f"{self.unit} {self.first:,}-{'' if self.last is None else f'{self.last:,}'}"


@dataclass(frozen=True, slots=True)
class Expectations:
    """The plan of a run."""

    run: Expected = field(default_factory=Expected)
    stages: tuple[PlannedStage, ...] = ()
    steps_per_epoch: int | None = None
    then: str = ""


def read_expectations(path: str | os.PathLike[str]) -> Expectations:
    """Read a plan. What is wrong in it is an error that names the place."""
    import yaml

    place = Path(path)
    try:
        document = yaml.safe_load(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{place}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{place}: not YAML: {' '.join(str(error).split())}") from None
    return parse_expectations(document, where=place.name)


def parse_expectations(document: Any, *, where: str = "plan") -> Expectations:
    """A plan from plain values."""
    table = _table(document, where, ("run", "stages", "steps_per_epoch", "then", "next"))
    stages = table.get("stages") or []
    if not isinstance(stages, list):
        raise FormatError(f"{where}: stages: expected a list, got {stages!r}")
    per_epoch = table.get("steps_per_epoch")
    if per_epoch is not None and (not isinstance(per_epoch, int) or per_epoch < 1):
        raise FormatError(f"{where}: steps_per_epoch: expected a whole number above 0, got {per_epoch!r}")
    then = table.get("then", table.get("next", ""))
    return Expectations(
        _expected(table.get("run") or {}, f"{where}: run"),
        tuple(_stage(stage, f"{where}: stages[{i}]", i) for i, stage in enumerate(stages)),
        per_epoch,
        ", ".join(map(str, then)) if isinstance(then, list) else str(then),
    )


def _stage(given: Any, where: str, index: int) -> PlannedStage:
    """A stage of a plan: its range of epochs or steps, and what is expected in it."""
    table = _table(given, where, ("name", "epochs", "steps", *_KEYS))
    units = [unit for unit in ("epochs", "steps") if unit in table]
    if len(units) != 1:
        raise FormatError(f"{where}: give either epochs or steps, e.g. epochs: 1-5")
    unit: Literal["epochs", "steps"] = "epochs" if units[0] == "epochs" else "steps"
    match = _SPAN.match(str(table[unit]))
    if match is None:
        raise FormatError(f"{where}: {unit}: expected a range such as 1-5 or 6-, got {table[unit]!r}")
    first = int(re.sub(r"[_,]", "", match[1]))
    open_ended = match[3] is not None or (match[2] is None and re.search(r"[-–.]|to", str(table[unit])) is not None)
    last = None if open_ended else int(re.sub(r"[_,]", "", match[2] or match[1]))
    if last is not None and last < first:
        raise FormatError(f"{where}: {unit}: {table[unit]!r} ends before it begins")
    rest = {key: value for key, value in table.items() if key in _KEYS}
    return PlannedStage(str(table.get("name") or f"stage {index + 1}"), unit, first, last, _expected(rest, where))


def _expected(given: Any, where: str) -> Expected:
    """What is expected of a stage or a run; raises `FormatError` that names the key."""
    table = _table(given, where, _KEYS)
    loss = table.get("loss")
    if isinstance(loss, Mapping):
        loss = _limits(loss, f"{where}: loss")
    elif loss not in (None, "falls", "stable"):
        raise FormatError(f"{where}: loss: expected falls, stable or limits such as {{below: 5}}, got {loss!r}")
    lr = table.get("lr")
    if _is_number(lr):
        lr = {"peak": lr}
    rates = _table(lr or {}, f"{where}: lr", ("first", "peak", "last", "above", "below"))
    values = {
        **_table(table.get("values") or {}, f"{where}: values"),
        **_table(table.get("watch") or {}, f"{where}: watch"),
    }
    results = _table(table.get("evaluation") or {}, f"{where}: evaluation")
    return Expected(
        loss,
        _whole(table.get("incidents"), f"{where}: incidents"),
        _number(table.get("applied"), f"{where}: applied"),
        _whole(table.get("spikes"), f"{where}: spikes"),
        {key: _number(value, f"{where}: lr.{key}") or 0.0 for key, value in rates.items()},
        {name: _limits(value, f"{where}: values.{name}") for name, value in values.items()},
        {
            name: None if value == "improves" else _limits(value, f"{where}: evaluation.{name}")
            for name, value in results.items()
        },
    )


def _limits(given: Any, where: str) -> Limits:
    if _is_number(given):
        return Limits(below=float(given))
    table = _table(given, where, ("above", "below", "min", "max"))
    above, below = table.get("above", table.get("min")), table.get("below", table.get("max"))
    return Limits(_number(above, where), _number(below, where))


def _table(given: Any, where: str, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    """A mapping with text keys; raises `FormatError` for anything else, and for a key that is not known."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise FormatError(f"{where}: expected a mapping, got {given!r}")
    for key in given:
        if known is not None and key not in known:
            raise FormatError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    return {str(key): value for key, value in given.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any, where: str) -> float | None:
    """A number, also one that YAML read as text (`1e-4`); `None` for none."""
    if isinstance(value, str):  # YAML reads 1e-4 as text
        try:
            return float(value)
        except ValueError:
            pass
    if value is None or _is_number(value):
        return None if value is None else float(value)
    raise FormatError(f"{where}: expected a number, got {value!r}")


def _whole(value: Any, where: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise FormatError(f"{where}: expected a whole number, got {value!r}")
