"""What else gets the lines of the journal: exporters and alerts, and the thread in which they do their work."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nantrap.incident import Incident

if TYPE_CHECKING:
    from nantrap.record.alerts import Alerts
    from nantrap.record.exporters import Exporter

_MOST_WAITING = 20_000


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
    from nantrap.record.alerts import Alerter  # both import the queue below
    from nantrap.record.exporters import open_exporters

    wanted = (export,) if isinstance(export, str) else tuple(export)
    listeners: list[Listener] = []
    if wanted:
        listeners.append(open_exporters(wanted, run_dir=run_dir, facts=facts))
    if alerts is not None:
        listeners.append(Alerter(alerts, run=Path(run_dir).resolve().name if run_dir else ""))
    return tuple(listeners)


class BackgroundQueue:
    """Passes items to a function in another thread. Holds the items that wait.

    The thread starts with the first item. When too many wait, new ones are dropped and counted, unless they matter.

    Args:
        handle: called with each item, in the thread; what it raises is lost.
        most: how many items may wait.
    """

    def __init__(self, handle: Callable[[Any], None], *, most: int = _MOST_WAITING) -> None:
        self.dropped = 0
        self._handle = handle
        self._most = most
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, item: Any, *, matters: bool = False) -> None:
        """Add an item; returns immediately."""
        if self._closed:
            return
        if not matters and self._items.qsize() >= self._most:
            self.dropped += 1
            return
        self._items.put(item)
        if self._thread is None:
            self._thread = threading.Thread(
                target=_work, args=(self._items, self._handle), name="nantrap-background", daemon=True
            )
            self._thread.start()
            # a daemon thread is killed when the interpreter exits: let this one finish its items first
            atexit.register(self.close)

    def close(self, *, timeout: float = 10.0) -> bool:
        """Wait until all items are handled, at most `timeout` seconds. True if they were. May be called again."""
        thread = self._thread
        if not self._closed:
            self._closed = True
            self._items.put(_END)
        atexit.unregister(self.close)
        if thread is None:
            return True
        thread.join(timeout)
        return not thread.is_alive()


_END = object()


def _work(items: queue.SimpleQueue[Any], handle: Callable[[Any], None]) -> None:
    while (item := items.get()) is not _END:
        with contextlib.suppress(Exception):  # also a warning that the user turned into an error
            handle(item)
