"""Shards on a Ray cluster: one that is already running, or a local one for the time of the check.

A shard is read from the path it names, so all machines must see the same files. A task whose worker dies is run again
by Ray; if it dies again and again, the shard is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from nantrap.errors import MissingExtraError

Item = TypeVar("Item")
Result = TypeVar("Result")

_RETRIES = 3
_WAITING = 64
"""Tasks handed over at once: results do not pile up, and workers do not run out of work."""


class Ray:
    """Runs a function on the workers of a Ray cluster. Holds nothing but the connection."""

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
        own = not self._ray.is_initialized()
        if own:
            self._start()
        try:
            yield from self._run(function, items)
        finally:
            if own:
                self._ray.shutdown()

    def _start(self) -> None:
        """Join the cluster that RAY_ADDRESS or `ray start` points to; start a local one if there is none."""
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            self._ray.init(address="auto", **quiet)
        except ConnectionError:
            self._ray.init(num_cpus=self._workers, include_dashboard=False, **quiet)

    def _run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        task = self._ray.remote(max_retries=_RETRIES)(lambda item: function(item))
        waiting = iter(enumerate(items))
        running: dict[Any, int] = {}
        while True:
            while len(running) < _WAITING and (entry := next(waiting, None)) is not None:
                running[task.remote(entry[1])] = entry[0]
            if not running:
                return
            done, _ = self._ray.wait(list(running), num_returns=1)
            for reference in done:
                number = running.pop(reference)
                try:
                    yield number, self._ray.get(reference)
                except self._ray.exceptions.WorkerCrashedError:
                    yield number, function(items[number])
