"""Where the work is done: threads of this process, or a Ray cluster. Both run the same function on the same items.

The items of `nantrap data` are pieces of data files, those of `nantrap audit` are files of checkpoints. An engine gives
the results in whatever order they are ready, each with the number of its item; the caller puts them in order again, so
that no report depends on which worker was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from nantrap.engines.threads import Threads
from nantrap.errors import UsageError

__all__ = ["NAMES", "Engine", "Threads", "engine_named", "in_order"]

NAMES = ("local", "ray")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Runs a function on many items."""

    def run(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        """Number and result of each item, in whatever order they finish."""


def engine_named(name: str, *, workers: int | None = None) -> Engine:
    """`local` or `ray`.

    Args:
        name: of the engine.
        workers: how many items are processed in parallel; by default one per core, or as many as the cluster takes.
    """
    if name == "local":
        return Threads(workers)
    if name == "ray":
        from nantrap.engines.ray_cluster import Ray

        return Ray(workers)
    raise UsageError(f"there is no engine {name!r}; choose {' or '.join(NAMES)}")


def in_order(
    engine: Engine,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    done: Callable[[int], None] = lambda number: None,
) -> list[Result]:
    """All results in the order of the items.

    Args:
        engine: who does the work.
        function: what is done with each item.
        items: what it is done with.
        done: called with the number of each item as soon as it is finished, for a progress bar.
    """
    found: dict[int, Result] = {}
    for number, result in engine.run(function, items):
        found[number] = result
        done(number)
    return [found[number] for number in range(len(items))]
