"""Items on a Ray cluster: one that is already running, or a local one for the time of the work.

A file is read from the path that its item names, so all machines must see the same files. A task whose worker dies is
run again by Ray; if it dies again and again, or its machine is lost, the item is worked on here.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from nantrap.errors import MissingExtraError

Item = TypeVar("Item")
Result = TypeVar("Result")

_RETRIES = 3
_WAITING = 64
"""Tasks that are submitted together: results do not pile up, and workers do not run out of work."""


class Ray:
    """Runs a function on the workers of a Ray cluster. Holds the connection, which ends with this object."""

    def __init__(self, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("ray", extra="ray") from error
        self._ray: Any = ray
        self._workers = workers

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Number and result of each item, in whatever order they finish."""
        if not items:
            return
        # Ray prints what happens to its workers on stdout, which belongs to the report.
        with contextlib.redirect_stdout(sys.stderr):
            if not self._ray.is_initialized():
                self._start()
                weakref.finalize(self, self._ray.shutdown)
            yield from self._run(function, items)

    def _start(self) -> None:
        """Join the cluster that RAY_ADDRESS or `ray start` points to; start a local one if there is none."""
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            self._ray.init(address="auto", **quiet)
        except ConnectionError:
            self._ray.init(num_cpus=self._workers, include_dashboard=False, **quiet)

    def _run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """The results as the tasks finish, each with the number of its item; a lost task is computed here."""
        errors = self._ray.exceptions
        task = self._ray.remote(max_retries=_RETRIES)(lambda item: function(item))
        most = _WAITING if self._workers is None else max(1, self._workers)
        waiting = iter(enumerate(items))
        running: dict[Any, int] = {}
        while True:
            while len(running) < most and (entry := next(waiting, None)) is not None:
                running[task.remote(entry[1])] = entry[0]
            if not running:
                return
            done, _ = self._ray.wait(list(running), num_returns=1)
            for reference in done:
                number = running.pop(reference)
                try:
                    yield number, self._ray.get(reference)
                except errors.RayTaskError:  # the function itself raised: it would do so here as well
                    raise
                except errors.RayError:  # a dead worker, a lost machine, too little memory there
                    yield number, function(items[number])
