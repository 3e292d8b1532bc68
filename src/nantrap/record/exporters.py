"""Values and incidents to other tools while a run is training: TensorBoard, Weights & Biases, MLflow, Trackio.

    exporters = open_exporters(["tensorboard"], run_dir="runs/exp1", facts={...})
    exporters.append(line)               # the journal's line of a step, or of an evaluation
    exporters.incident(incident, text=text)
    exporters.close()

All work is done in a thread; an exporter that fails is switched off with one warning, and training continues. The tools
are imported when one of them is started.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from nantrap.errors import MissingExtraError, NantrapError, UsageError
from nantrap.incident import Incident
from nantrap.incident.wording import escaped
from nantrap.record.event_files import EventWriter
from nantrap.record.listeners import BackgroundQueue

_MOST_FAILURES = 3
_MLFLOW_BATCH = 500
_MLFLOW_SECONDS = 2.0
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


# ---- the tools


def _start_tensorboard(run_dir: str | None, facts: dict[str, Any]) -> EventWriter:
    """Begin an event file below the run's folder, or below `runs/nantrap` where there is none."""
    return EventWriter(Path(run_dir or Path("runs", "nantrap")) / "tensorboard")


def _start_wandb(run_dir: str | None, facts: dict[str, Any]) -> WandB:
    """Join the run that the script has begun, or begin one. Offline with WANDB_MODE=offline."""
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError("wandb", extra="wandb") from error
    run = wandb.run
    if run is not None:
        return WandB(run, owned=False)
    name = Path(run_dir).resolve().name if run_dir else None
    if run_dir is not None:
        os.makedirs(run_dir, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT") or "nantrap"
    return WandB(wandb.init(project=project, name=name, dir=run_dir, config=facts), owned=True)


class WandB:
    """Logs to a run of W&B, over its own step counter, so that the script's own steps are not disturbed."""

    name = "wandb"

    def __init__(self, run: Any, *, owned: bool) -> None:
        self._run = run
        self._owned = owned
        run.define_metric("nantrap/step")
        run.define_metric("nantrap/*", step_metric="nantrap/step")

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        self._run.log({"nantrap/step": step, **{f"nantrap/{name}": value for name, value in values.items()}})

    def incident(self, incident: Incident, text: str) -> None:
        """Log the diagnostic, and raise an alert."""
        import html

        import wandb

        page = wandb.Html(f"<pre>{html.escape(text)}</pre>", inject=False)
        self._run.log({"nantrap/step": incident.step, "nantrap/incident": page})
        self._run.alert(
            title=f"nantrap: step {incident.step:,}: {incident.action}", text=text[:1500], wait_duration=300
        )

    def close(self) -> None:
        """End the run if it is ours."""
        if self._owned:
            self._run.finish()


def _start_mlflow(run_dir: str | None, facts: dict[str, Any]) -> MLflow:
    """Join the active run, or begin one. Where it goes is MLflow's own setting (MLFLOW_TRACKING_URI)."""
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError("mlflow", extra="mlflow") from error
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    active = mlflow.active_run()
    if active is not None:
        return MLflow(client, active.info.run_id, owned=False)
    name = "nantrap"
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment is not None else client.create_experiment(name)
    run = client.create_run(experiment_id, run_name=Path(run_dir).resolve().name if run_dir else None)
    exporter = MLflow(client, run.info.run_id, owned=True)
    for key, value in facts.items():
        client.log_param(run.info.run_id, key, str(value)[:500])
    return exporter


class MLflow:
    """Logs to a run of MLflow, many values in one request. Holds those that wait."""

    name = "mlflow"

    def __init__(self, client: Any, run_id: str, *, owned: bool) -> None:
        self._client = client
        self._run_id = run_id
        self._owned = owned
        self._waiting: list[Any] = []
        self._send_after = time.monotonic() + _MLFLOW_SECONDS

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the values of a step, and send when there are many or some time has passed."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(_mlflow_key(name), value, now, step) for name, value in values.items()]
        if len(self._waiting) >= _MLFLOW_BATCH or time.monotonic() >= self._send_after:
            self._send()

    def incident(self, incident: Incident, text: str) -> None:
        """The diagnostic as a file of the run, and a tag."""
        self._send()
        place = f"{incident.step:06d}-r{incident.rank}"
        self._client.log_text(self._run_id, text, f"nantrap/incidents/{place}.txt")
        cause = incident.causes[0].slug if incident.causes else incident.phase
        self._client.set_tag(self._run_id, f"nantrap.incident.{place}", f"{incident.action}: {cause}")

    def close(self) -> None:
        """Send what waits, and end the run if it is ours."""
        self._send()
        if self._owned:
            self._client.set_terminated(self._run_id)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for begin in range(0, len(waiting), _MLFLOW_BATCH):
            self._client.log_batch(self._run_id, metrics=waiting[begin : begin + _MLFLOW_BATCH])
        self._send_after = time.monotonic() + _MLFLOW_SECONDS


def _mlflow_key(name: str) -> str:
    """MLflow allows letters, digits, `_`, `-`, `.`, `/` and spaces."""
    return "nantrap/" + "".join(sign if sign.isalnum() or sign in "_-./ " else "_" for sign in name)


def _start_trackio(run_dir: str | None, facts: dict[str, Any]) -> Trackio:
    """Begin a run of Trackio (`trackio show`), whose files are where its own setting says (TRACKIO_DIR)."""
    try:
        import trackio
    except ImportError as error:
        raise MissingExtraError("trackio", extra="trackio") from error
    name = Path(run_dir).resolve().name if run_dir else None
    return Trackio(trackio.init(project="nantrap", name=name, config=facts))


class Trackio:
    """Logs to a run of Trackio."""

    name = "trackio"

    def __init__(self, run: Any) -> None:
        self._run = run

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step; Trackio has no NaN, so their number is logged instead."""
        self._run.log(_finite_only(values), step=step)

    def incident(self, incident: Incident, text: str) -> None:
        """Log the diagnostic."""
        self._run.log({"incident": text}, step=incident.step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def _finite_only(values: Mapping[str, float]) -> dict[str, float]:
    """For tools that cannot hold NaN: the finite values, and how many were left out."""
    kept = {name: value for name, value in values.items() if math.isfinite(value)}
    if len(kept) < len(values):
        kept["nonfinite"] = float(len(values) - len(kept))
    return kept


_STARTS: Final[Mapping[str, Callable[[str | None, dict[str, Any]], Exporter]]] = {
    "tensorboard": _start_tensorboard,
    "wandb": _start_wandb,
    "mlflow": _start_mlflow,
    "trackio": _start_trackio,
}
NAMES: Final = tuple(_STARTS)
"""The exporters there are."""


# ---- starting them


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
        try:
            started.append(_STARTS[name](None if run_dir is None else os.fspath(run_dir), dict(facts)))
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
