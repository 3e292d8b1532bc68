"""What an exporter is, and the one object that feeds all of them."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from nantrap.errors import MissingExtraError, NantrapError, UsageError
from nantrap.incident import Incident
from nantrap.incident.wording import escaped
from nantrap.record.background import BackgroundQueue

NAMES: Final = ("tensorboard", "wandb", "mlflow", "trackio")
"""The exporters there are. Each is a module of this package with a function `start`."""

_MOST_FAILURES = 3
_NOT_VALUES = frozenset({"step", "action", "by", "incident", "event", "kind", "batch", "found", "phase"})


@runtime_checkable
class Exporter(Protocol):
    """Where values go. All methods but the constructor are called in one thread, and may raise."""

    name: str

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """The values of a step, or the results of an evaluation, by name (`loss`, `terms/ce`, `eval/accuracy`)."""
        ...

    def incident(self, incident: Incident, text: str) -> None:
        """An incident, and its diagnostic."""
        ...

    def close(self) -> None:
        """The run has ended."""
        ...


class Exporters:
    """Feeds exporters from a thread. Holds those that still work."""

    def __init__(self, exporters: Iterable[Exporter]) -> None:
        self._exporters = list(exporters)
        self._failures: dict[str, int] = {}
        self._background = BackgroundQueue(self._handle)

    def append(self, line: Mapping[str, Any]) -> None:
        """A line of the journal: a step or an evaluation. Costs a training loop almost nothing."""
        if self._exporters:
            self._background.put((line, None))

    def incident(self, incident: Incident, *, headline: str = "", text: str) -> None:
        """An incident, and its diagnostic."""
        if self._exporters:
            self._background.put((incident, text), matters=True)

    def close(self, *, timeout: float = 30.0) -> None:
        """Send what waits, and close the exporters. May be called again."""
        self._background.put((None, None), matters=True)
        if not self._background.close(timeout=timeout):
            self._warn("exporters", f"not done after {timeout:g} s; the last values are lost")
        elif self._background.dropped:
            self._warn("exporters", f"too slow: the values of {self._background.dropped:,} steps were left out")

    def _handle(self, item: tuple[Any, str | None]) -> None:
        """Give one item of the queue to every exporter; one that raises is counted, and training continues."""
        what, text = item
        for exporter in list(self._exporters):
            try:
                if what is None:
                    self._exporters.remove(exporter)
                    exporter.close()
                elif isinstance(what, Incident):
                    exporter.incident(what, text or "")
                else:
                    values = dict(flat_values(what))
                    if values:
                        exporter.values(int(what.get("step", 0)), values)
                    self._failures[exporter.name] = 0
            except Exception as error:  # whatever another tool does, training continues
                self._failed(exporter, error)

    def _failed(self, exporter: Exporter, error: Exception) -> None:
        count = self._failures[exporter.name] = self._failures.get(exporter.name, 0) + 1
        if count < _MOST_FAILURES and exporter in self._exporters:
            return
        if exporter in self._exporters:
            self._exporters.remove(exporter)
        self._warn(exporter.name, f"switched off after {type(error).__name__}: {error}")

    def _warn(self, name: str, words: str) -> None:
        text = escaped(f"nantrap: export to {name}: {words}", most=4000)
        warnings.warn(f"{text}. Training continues", RuntimeWarning, stacklevel=3)


def open_exporters(
    wanted: Iterable[str | Exporter], *, run_dir: str | os.PathLike[str] | None, facts: Mapping[str, Any]
) -> Exporters:
    """Start exporters.

    Args:
        wanted: names (`tensorboard`, `wandb`, `mlflow`, `trackio`), or objects with the methods of an `Exporter`.
        run_dir: the run's folder; its last part names the run.
        facts: what to record about the run: the facts of `run.json`, never the environment.

    Raises:
        UsageError: an exporter that is not known.
        MissingExtraError: its package is not installed. Anything else that goes wrong is a warning.
    """
    started: list[Exporter] = []
    for name in [wanted] if isinstance(wanted, str) else wanted:
        if not isinstance(name, str):
            if not isinstance(name, Exporter):
                raise UsageError(f"export={name!r}: expected one of {', '.join(NAMES)}, or an object with "
                                 "name, values(), incident() and close()")  # fmt: skip
            started.append(name)
            continue
        if name not in NAMES:
            raise UsageError(f"export={name!r}: choose from {', '.join(NAMES)}")
        module = importlib.import_module(f"nantrap.record.exporters.to_{name}")
        try:
            started.append(module.start(None if run_dir is None else os.fspath(run_dir), dict(facts)))
        except NantrapError:
            raise
        except Exception as error:  # no network, no login, a full disk
            reason = escaped(f"{type(error).__name__}: {error}", most=4000).rstrip(".")
            warnings.warn(
                f"nantrap: export to {name} did not start: {reason}. Training continues",
                RuntimeWarning,
                stacklevel=3,
            )
    return Exporters(started)


def check_exporters(names: Iterable[str]) -> None:
    """Raise for an exporter that is not known or not installed, before anything is started."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"export={name!r}: choose from {', '.join(NAMES)}")
        if name != "tensorboard" and importlib.util.find_spec(name) is None:  # its files are written without it
            raise MissingExtraError(name, extra=name)


def flat_values(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a journal line by the names that other tools show: `loss`, `lr`, `terms/ce`, `eval/accuracy`."""
    metrics = line.get("metrics")
    if (line.get("event") or line.get("kind")) == "eval" and isinstance(metrics, Mapping):
        yield from ((f"eval/{name}", float(value)) for name, value in metrics.items())
        return
    if line.get("event") or line.get("kind"):
        return
    yield "applied", float(line.get("action", "apply") == "apply")
    for name, value in line.items():
        if name in _NOT_VALUES:
            continue
        if isinstance(value, Mapping):
            yield from ((f"{name}/{key}", float(item)) for key, item in value.items() if _is_number(item))
        elif isinstance(value, (list, tuple)):
            # not `lr/1`: MLflow keeps `lr` as a file, and a file cannot be a folder too
            yield from ((f"{name}.{i}" if i else name, float(v)) for i, v in enumerate(value) if _is_number(v))
        elif _is_number(value):
            yield name, float(value)


def finite_only(values: Mapping[str, float]) -> dict[str, float]:
    """For tools that cannot hold NaN: the finite values, and how many were left out."""
    kept = {name: value for name, value in values.items() if math.isfinite(value)}
    if len(kept) < len(values):
        kept["nonfinite"] = float(len(values) - len(kept))
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
