"""Who does the work: threads of this process, or a Ray cluster. Both run the same function on the same shards.

numpy, Pillow and pyarrow release the interpreter lock while they work, so threads use all cores without copies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

from nantrap.errors import UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Runs a function on many items."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Number and result of each item, in whatever order they finish."""


class Threads:
    """Threads of this process."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or _cores()

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """A few items more than there are workers are waiting at any time, so a million files cost no memory."""
        if len(items) == 1 or self._workers == 1:
            for number, item in enumerate(items):
                yield number, function(item)
            return
        waiting = iter(enumerate(items))
        with ThreadPoolExecutor(self._workers) as pool:
            running: dict[Future[Result], int] = {}
            try:
                while True:
                    while len(running) < 2 * self._workers and (entry := next(waiting, None)) is not None:
                        running[pool.submit(function, entry[1])] = entry[0]
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield running.pop(future), future.result()
            finally:
                for future in running:
                    future.cancel()


def engine_named(name: str, *, workers: int | None = None) -> Engine:
    """`local` or `ray`."""
    if name == "local":
        return Threads(workers)
    if name == "ray":
        from nantrap.doctor.data.ray_engine import Ray

        return Ray(workers)
    raise UsageError(f"there is no engine {name!r}; choose local or ray")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
