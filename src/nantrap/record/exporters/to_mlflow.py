"""To MLflow: into the active run, or a new one. Where it goes is MLflow's own setting (MLFLOW_TRACKING_URI)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nantrap.errors import MissingExtraError
from nantrap.incident import Incident

_BATCH = 500
_SECONDS = 2.0


def start(run_dir: str | None, facts: dict[str, Any]) -> MLflow:
    """Join the active run, or begin one."""
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
        self._send_after = time.monotonic() + _SECONDS

    def values(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the values of a step, and send when there are many or some time has passed."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(_key(name), value, now, step) for name, value in values.items()]
        if len(self._waiting) >= _BATCH or time.monotonic() >= self._send_after:
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
        for begin in range(0, len(waiting), _BATCH):
            self._client.log_batch(self._run_id, metrics=waiting[begin : begin + _BATCH])
        self._send_after = time.monotonic() + _SECONDS


def _key(name: str) -> str:
    """MLflow allows letters, digits, `_`, `-`, `.`, `/` and spaces."""
    return "nantrap/" + "".join(sign if sign.isalnum() or sign in "_-./ " else "_" for sign in name)
