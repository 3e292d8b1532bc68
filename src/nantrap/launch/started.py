"""A process that the script starts, and what it tells the one that started it.

Every process that runs a `GuardedFunction` reads this file first, so it imports no torch: most processes train nothing
(an environment, a reader of files) and shall start as quickly as without nantrap.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nantrap.launch.settings import RunSettings

if TYPE_CHECKING:
    from nantrap.launch.summary import RunSummary


class Reports:
    """What the processes that this one started have told: a file with one line for each thing they tell."""

    def __init__(self) -> None:
        self.path = ""
        """Empty while no process was started."""

    def open(self) -> str:
        """The file for a process that is about to start."""
        if not self.path:
            handle, self.path = tempfile.mkstemp(prefix="nantrap-", suffix=".jsonl")
            os.close(handle)
        return self.path

    def read(self) -> list[dict[str, Any]]:
        """Everything they have told so far."""
        try:
            return [json.loads(line) for line in Path(self.path).read_text().splitlines()] if self.path else []
        except (OSError, ValueError):  # another program emptied the folder of temporary files
            return []

    def close(self) -> None:
        """The file is not needed any more."""
        if self.path:
            with contextlib.suppress(OSError):
                Path(self.path).unlink()


def tell(path: str, **found: Any) -> None:
    """Add a line for the process that started this one."""
    with contextlib.suppress(OSError), open(path, "a") as file:
        file.write(json.dumps({"process": os.getpid(), **found}) + "\n")


def tell_end(path: str, summary: RunSummary) -> None:
    """This process has trained, and ends."""
    tell(path, trained=True, stopped=summary.stopped, failed=summary.failed)


@dataclass(frozen=True, slots=True)
class GuardedFunction:
    """A function that a child process runs under guard.

    Attributes:
        function: of the script.
        settings: of the run.
        reports: the file of the process that started it.
        number: of this process; `None` where it is the first argument of the function (`mp.spawn`).
    """

    function: Callable[..., Any]
    settings: RunSettings
    reports: str
    number: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """In the new process: attach if torch is there, run the function, end with a summary."""
        number = args[0] if self.number is None else self.number
        if self.number is not None and "torch" not in sys.modules:
            self.function(*args, **kwargs)
            if "torch" not in sys.modules:
                tell(self.reports, guarded=True)  # there was nothing to guard
            return
        from nantrap.launch.attach import Attachment, current

        settings, attachment = replace(self.settings, process=number), current()
        if attachment is None:
            attachment = Attachment(settings)
            attachment.enter_living()  # an optimizer among the arguments, functions that the script's file imported
        else:  # a forked process is attached already
            attachment.begin_in_child(settings)
        attachment.registry.reports_to = self.reports
        tell(self.reports, guarded=True)
        try:
            self.function(*args, **kwargs)
        finally:
            attachment.end_in_child()
            attachment.detach()
