"""To Trackio: a local dashboard (`trackio show`). Where it keeps its files is Trackio's own setting (TRACKIO_DIR)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nantrap.errors import MissingExtraError
from nantrap.incident import Incident
from nantrap.record.exporters.exporter import finite_only


def start(run_dir: str | None, facts: dict[str, Any]) -> Trackio:
    """Begin a run of Trackio."""
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
        self._run.log(finite_only(values), step=step)

    def incident(self, incident: Incident, text: str) -> None:
        """Log the diagnostic."""
        self._run.log({"incident": text}, step=incident.step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()
