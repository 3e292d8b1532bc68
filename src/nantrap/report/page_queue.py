"""The page of an incident is written after its step, in a thread of its own, so that training continues meanwhile.

At the incident itself the JSON, the text and the journal line are written. `write_page_later` puts the folder into a
queue. The page exists once `wait_for_pages` has returned `True`; the end of a run waits, and so does the end of the
process. After a kill in between, `nantrap report INCIDENT` writes the page from the JSON.

The thread ends when the queue is empty and is no daemon: Python waits for it at the end of the process, also in a
child of `multiprocessing`, which ends without exit handlers. It reads and writes files and never calls torch.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

_MOST_WAITING = 64
"""Pages that may wait. Further ones are written at once, in the step."""
_STEP_ENDS_WITHIN = 0.5
"""Seconds after which a page is begun even if nobody said that its step has ended."""
_LONGEST_FORK_WAIT = 5.0
"""Seconds that a fork waits: the child then inherits no half-written page and no lock that the thread holds."""


class PageQueue:
    """Passes folders of incidents to a function in another thread. Holds the folders that wait.

    Args:
        write: called with each folder, in the thread; what it raises is lost.
        most: how many folders may wait.
    """

    def __init__(self, write: Callable[[str], object], *, most: int = _MOST_WAITING) -> None:
        self._write = write
        self._most = most
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a copy of the process, which has no thread and must not write the pages of the first."""
        self._changed = threading.Condition()  # its lock can be taken again: a finalizer may run in the thread
        self._step_ended = threading.Event()
        self._folders: dict[str, None] = {}
        self._thread: threading.Thread | None = None

    def add(self, folder: str | os.PathLike[str]) -> None:
        """Write the page of this folder later; at once if too many wait or no thread can be started."""
        place = os.path.abspath(folder)  # the script may change its working directory
        with self._changed:
            if len(self._folders) < self._most and self._runs():
                self._folders[place] = None
                return
        with contextlib.suppress(Exception):
            self._write(place)

    def begin(self) -> None:
        """The step has ended: the pages that wait are written now."""
        self._step_ended.set()

    def has(self, folder: str | os.PathLike[str]) -> bool:
        """Whether the page of this folder waits or is being written."""
        return os.path.abspath(folder) in self._folders

    def wait(self, *, timeout: float) -> bool:
        """Wait until every page is written, at most `timeout` seconds. `True` if they are.

        A call in the thread itself (the garbage collector may run a finalizer there) does not wait.
        """
        self.begin()
        end = time.monotonic() + timeout
        with self._changed:
            while self._folders and self._thread is not threading.current_thread():
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return not self._folders

    def _runs(self) -> bool:
        """Whether the thread runs; it is started if it does not."""
        if self._thread is None:
            self._step_ended.clear()
            thread = threading.Thread(target=self._work, name="nantrap-pages", daemon=False)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is shutting down
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        """Write the pages that wait, oldest first, and end when none is left."""
        self._step_ended.wait(_STEP_ENDS_WITHIN)
        while True:
            with self._changed:
                place = next(iter(self._folders), None)
                if place is None:
                    self._thread = None
                    return
            with contextlib.suppress(BaseException):  # a page must not end the thread, nor print into the run
                self._write(place)
            with self._changed:
                del self._folders[place]
                self._changed.notify_all()


def _write(folder: str) -> None:
    from nantrap.report.writing import write_incident_report  # templates are imported in the thread

    write_incident_report(folder)


_pages = PageQueue(_write)


def write_page_later(folder: str | os.PathLike[str]) -> None:
    """Write `report.html` into the folder of an incident after the step. Returns immediately and never raises."""
    _pages.add(folder)


def begin_pages() -> None:
    """A step with an incident has ended: its page is written now."""
    _pages.begin()


def page_is_coming(folder: str | os.PathLike[str]) -> bool:
    """Whether `report.html` of this folder is still to be written by this process."""
    return _pages.has(folder)


def wait_for_pages(*, timeout: float = 30.0) -> bool:
    """Wait until `report.html` of every incident so far is written, at most `timeout` seconds. `True` if all are.

    `Guard.close()`, the end of `nantrap run` and the end of the process wait by themselves.
    """
    return _pages.wait(timeout=timeout)


def _before_fork() -> None:
    _pages.wait(timeout=_LONGEST_FORK_WAIT)


def _in_child() -> None:
    _pages.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
