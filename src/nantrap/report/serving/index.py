"""Which runs there are, their state, and their curves, without reading what was read before.

A run is listed from the end of its journal. Its curves and counts are gathered in the background, in slices
(`JournalCache`).
A log that nantrap did not write is listed from its end too, and opened as a whole when its page is asked for.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nantrap.errors import NantrapError
from nantrap.report.journals import JournalRow, appended, ending, incident_folders, journals_of, window
from nantrap.report.serving.cache import BUCKET, JournalCache, StepCounts
from nantrap.report.serving.finding import RunPlace, places_under
from nantrap.report.serving.foreign import ForeignLog, stamp
from nantrap.report.serving.state import Recent, state_of
from nantrap.report.serving.summary import Summary, is_alive, summarised, summarised_log

__all__ = ["BUCKET", "Index"]

_MOST_OPEN = 8
_Kept = tuple[tuple[int, int], tuple[Summary, Recent, int | None] | None]


class Index:
    """The runs and logs under a folder. Holds the summaries, by run, the cache, and the logs that are open.

    Args:
        root: a folder of runs, or a run itself.
        cache: the file of the database; `None` keeps it in memory.
    """

    def __init__(self, root: Path, *, cache: Path | None = None) -> None:
        self.root = root.resolve()
        self._lock = threading.Lock()
        self._places: dict[str, RunPlace] = {}
        self._kept: dict[str, _Kept] = {}
        self._open: OrderedDict[str, ForeignLog] = OrderedDict()
        self._cache = JournalCache(cache)

    def close(self) -> None:
        """Close the database."""
        self._cache.close()

    # ---- which runs

    def discover(self) -> None:
        """Look for runs and logs, not too deep."""
        found: dict[str, RunPlace] = {}
        for place in places_under(self.root):
            ident = hashlib.sha256(str(place.path.relative_to(self.root)).encode()).hexdigest()[:12]
            found[ident] = place
        self._places = found
        for gone in self._kept.keys() - found.keys():
            self._kept.pop(gone, None)

    def path(self, ident: str) -> Path | None:
        """The folder of a run, or the log. Only what was discovered has one: an address never becomes a path."""
        place = self._places.get(ident)
        return place.path if place is not None else None

    def incident_folder(self, ident: str, name: str) -> Path | None:
        """The folder of an incident, if the run has one of that name."""
        place = self._places.get(ident)
        if place is None or place.foreign:
            return None
        return next((folder for folder in incident_folders(place.path) if folder.name == name), None)

    def summaries(self, *, seconds: float = math.inf) -> list[Summary]:
        """Every run, the ones that need attention first. Only files that changed are read.

        Args:
            seconds: stop reading after this time; runs that were not reached are missing, and come with a later call.
        """
        now, end = time.time(), time.monotonic() + seconds
        found = []
        for ident in list(self._places):
            if ident in self._kept or time.monotonic() < end:
                summary = self.summary(ident, now=now)
                if summary is not None:
                    found.append(summary)
        return sorted(found, key=lambda s: (s.state.rank, s.name))

    @property
    def unread(self) -> int:
        """Runs that were found and not yet summarised."""
        return len(self._places.keys() - self._kept.keys())

    def summary(self, ident: str, *, now: float | None = None) -> Summary | None:
        """One run; `None` for a file that is no log. Its state depends on the time, all else on its file alone."""
        place = self._places.get(ident)
        if place is None:
            return None
        journals = [] if place.foreign else journals_of(place.path)
        try:
            if place.foreign:
                mark = stamp(place.path)
            else:
                status = journals[0].stat()
                mark = (status.st_size, status.st_mtime_ns)
        except (OSError, IndexError):
            return None
        kept = self._kept.get(ident)
        modified = mark[1] / 1e9
        if kept is None or kept[0] != mark:
            if place.foreign:
                kept = mark, summarised_log(ident, place.path, self.root, modified)
            else:
                best = self.counts(ident).best
                kept = mark, summarised(ident, place.path, journals, self.root, modified, best)
            self._kept[ident] = kept
        if kept[1] is None:
            return None
        summary, recent, process = kept[1]
        age = max(0.0, (time.time() if now is None else now) - modified)
        return replace(summary, state=state_of(replace(recent, age=age, alive=is_alive(process))))

    # ---- steps

    def rows(self, ident: str) -> list[JournalRow]:
        """The last steps of a run."""
        return self.follow(ident)[0]

    def follow(self, ident: str) -> tuple[list[JournalRow], Callable[[], list[JournalRow]]]:
        """The last steps of a run, and a function that gives those that were written since its last call."""
        log, journal = self.log(ident), self._journal(ident)
        if log is not None:
            rows = log.rows()
            seen = rows[-1].step if rows else -1

            def newer() -> list[JournalRow]:
                nonlocal seen
                log.refresh()
                found = log.rows(after=seen)
                seen = found[-1].step if found else seen
                return found

            return rows, newer
        if journal is None:
            return [], list
        end = ending(journal)
        offset = end.offset

        def new() -> list[JournalRow]:
            nonlocal offset
            found, offset = appended(journal, offset)
            return found

        return end.rows, new

    def window(self, ident: str, first: int, last: int) -> list[JournalRow]:
        """The steps from `first` to `last`."""
        log, journal = self.log(ident), self._journal(ident)
        if log is not None:
            return log.window(first, last)
        return window(journal, first, last) if journal is not None else []

    def log(self, ident: str) -> ForeignLog | None:
        """The opened log, up to date; `None` for a run. A few stay open."""
        place = self._places.get(ident)
        if place is None or not place.foreign:
            return None
        with self._lock:
            log = self._open.get(ident)
        try:
            if log is None:
                log = ForeignLog(place.path)
            else:
                log.refresh()
        except (NantrapError, OSError):
            return None
        with self._lock:
            self._open[ident] = log
            self._open.move_to_end(ident)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return log

    # ---- counts and curves, gathered in the background

    def scan(self, *, most_bytes: int = 4 * 1024 * 1024) -> bool:
        """Read a slice of each journal that has more than was read; False when nothing is left."""
        more = False
        for ident in list(self._places):
            more = self.scan_run(ident, most_bytes=most_bytes) or more
        return more

    def scan_run(self, ident: str, *, most_bytes: int = 4 * 1024 * 1024) -> bool:
        """Read a slice of one journal. True if there is more to read."""
        path = self._journal(ident)
        if path is None:
            return False
        try:
            status = path.stat()
        except OSError:
            return False
        inode, offset, counts = self._cache.state(str(path))
        if inode != status.st_ino or status.st_size < offset:
            self._cache.forget(str(path))
            offset, counts = 0, StepCounts()
        if offset >= status.st_size:
            return False
        rows, after = appended(path, offset, most_bytes=most_bytes)
        if after == offset:
            return False
        self._cache.store(str(path), status.st_ino, after, counts, rows)
        return after < status.st_size

    def counts(self, ident: str) -> StepCounts:
        """What was counted so far. A log counts nothing."""
        path = self._journal(ident)
        return self._cache.state(str(path))[2] if path is not None else StepCounts()

    def curves(self, ident: str, first: int, last: int, *, points: int = 600) -> dict[str, Any]:
        """Curves in at most about `points` columns; `read` is the share of the journal that they are made from."""
        log, path = self.log(ident), self._journal(ident)
        if log is not None:
            return log.curves(first, last, points=points)
        if path is None:
            return {"first": first, "last": last, "width": 1, "columns": {}, "marks": []}
        read = self._cache.state(str(path))[1] / max(1, path.stat().st_size)
        return {**self._cache.curves(str(path), first, last, points=points), "read": round(min(1.0, read), 3)}

    def _journal(self, ident: str) -> Path | None:
        """The journal of the first rank."""
        place = self._places.get(ident)
        journals = journals_of(place.path) if place is not None and not place.foreign else []
        return journals[0] if journals else None
