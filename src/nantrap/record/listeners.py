"""What else gets the lines of the journal: exporters and alerts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from nantrap.incident import Incident
from nantrap.record.alerts import Alerter, Alerts
from nantrap.record.exporters import Exporter, open_exporters


class Listener(Protocol):
    """Gets the lines of the journal and the incidents as they happen. Returns immediately and never raises."""

    def append(self, line: Mapping[str, Any]) -> None:
        """A line of the journal: a step or an evaluation."""
        ...

    def incident(self, incident: Incident, *, headline: str, text: str) -> None:
        """An incident: in one line, and its whole diagnostic."""
        ...

    def close(self) -> None:
        """The run has ended. May be called again."""
        ...


def open_listeners(
    *,
    export: Iterable[str | Exporter] = (),
    alerts: Alerts | None = None,
    run_dir: str | os.PathLike[str] | None,
    facts: Mapping[str, Any],
) -> tuple[Listener, ...]:
    """Start the exporters and alerts that were asked for; a run without them pays nothing."""
    wanted = (export,) if isinstance(export, str) else tuple(export)
    listeners: list[Listener] = []
    if wanted:
        listeners.append(open_exporters(wanted, run_dir=run_dir, facts=facts))
    if alerts is not None:
        listeners.append(Alerter(alerts, run=Path(run_dir).resolve().name if run_dir else ""))
    return tuple(listeners)
