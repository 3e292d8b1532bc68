"""`torch.multiprocessing.spawn`: each process that it starts is guarded separately, and writes its own journal.

Most of them are new interpreters, which have to attach. A forked one is attached as its parent is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch.multiprocessing.spawn

from nantrap.errors import NonFiniteError
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.settings import Settings


@dataclass(frozen=True, slots=True)
class Guarded:
    """A function that a child process runs under guard."""

    function: Callable[..., Any]
    settings: Settings

    def __call__(self, number: int, *args: Any) -> None:
        from nantrap.launch.attach import Attachment, current
        from nantrap.launch.summary import Summary, print_summary

        settings, attachment = replace(self.settings, process=number), current()
        if attachment is None:
            attachment = Attachment(settings)
        else:  # a forked process is attached already
            attachment.begin_in_child(settings)
        try:
            self.function(number, *args)
        finally:
            summary = Summary.of(attachment)
            attachment.detach()
            if summary.optimizers:
                print_summary(summary, 3 if summary.stopped else 0, self.settings)


def install(patches: Patches, loops: Loops) -> None:
    """Guard every process of `mp.spawn` separately."""
    module = sys.modules["torch.multiprocessing.spawn"]

    def start(original: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        loops.has_children = True
        return original(Guarded(fn, replace(loops.settings, json=False)), *args, **kwargs)

    patches.wrap(module, "start_processes", start)
    patches.put(torch.multiprocessing, "start_processes", vars(module)["start_processes"])


def came_from_guard(error: BaseException) -> bool:
    """Whether an error that ended a run is the guard's, raised in a child or wrapped by a framework."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, NonFiniteError) or f"{NonFiniteError.__module__}.{NonFiniteError.__name__}" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
