"""Threads of this process. numpy, Pillow and pyarrow release the interpreter lock while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """Threads of this process. Holds how many."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or _cores()

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Number and result of each item. Few items wait at any time, so a million files cost no memory."""
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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
