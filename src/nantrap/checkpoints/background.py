"""Work that goes on beside the training: one job at a time, whose error is raised at the next opportunity."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Holds the thread of the current job, and its error until somebody asks."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object]) -> None:
        """Run `job` in a thread. The interpreter waits for it at its end, so a save is not lost by leaving."""
        self.wait()

        def run() -> None:
            try:
                job()
            except BaseException as error:  # raised by the next `wait`
                self._error = error

        self._thread = threading.Thread(target=run, name="nantrap-checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the job, and raise what it raised, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
