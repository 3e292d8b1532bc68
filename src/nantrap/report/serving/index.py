"""Which runs there are under a folder, their state, and their curves, without reading what was read before.

A run is listed from the end of its journal. Its curves and counts are gathered in the background, in slices
(`JournalCache`).
A log that nantrap did not write is listed from its end too, and opened as a whole when its page is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nantrap.errors import NantrapError
from nantrap.record import open_run
from nantrap.report.journals import JournalRow, appended, incident_folders, journals_of, steps_as_rows, window
from nantrap.report.serving.cache import JournalCache, StepCounts
from nantrap.report.serving.foreign import ForeignLog, stamp
from nantrap.report.serving.summary import Summary, summary_of_log, summary_of_run

_DEPTH = 4
_MOST_RUNS = 20_000
_NAMED = ("trainer_state.json", "metrics.csv")
_ENDINGS = (".jsonl", ".ndjson", ".log", ".out", ".txt", ".csv", ".tsv")
_MOST_OPEN = 8
_TAIL_BYTES = 256 * 1024


# ---- where the runs and logs are; links are not followed


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is: its folder, or the file (TensorBoard: the folder) of a log that nantrap did not write."""

    path: Path
    foreign: bool = False


def places_under(root: Path) -> list[RunPlace]:
    """Runs (folders with a journal) and possible logs, by path. Inside a run only its other optimizers are runs."""
    found: list[RunPlace] = []
    waiting = [(root, 0)]
    while waiting and len(found) < _MOST_RUNS:
        folder, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name.startswith("journal-r") and entry.name.endswith(".jsonl") for entry in entries):
            found.append(RunPlace(folder))
            found += [RunPlace(path) for path in folder.glob("optimizer-*") if journals_of(path)]
            continue
        found += [RunPlace(path, foreign=True) for path in _logs(folder, entries)]
        if depth < _DEPTH:
            for entry in entries:
                if entry.name[:1] not in (".", "_") and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
    return sorted(found, key=lambda place: place.path)


def _logs(folder: Path, entries: Sequence[os.DirEntry[str]]) -> Iterator[Path]:
    """The logs in one folder: where a tool writes one in several forms, the one that says most."""
    files = [entry for entry in entries if entry.name[:1] not in (".", "_") and entry.is_file(follow_symlinks=False)]
    names = {entry.name for entry in files}
    if any("tfevents" in name for name in names):
        yield folder
        return
    for name in _NAMED:
        if name in names:
            # the state is saved again in every checkpoint: the newest one has all of it
            if not (name == _NAMED[0] and folder.name.startswith("checkpoint-") and _is_newer(folder)):
                yield folder / name
            return
    yield from (Path(entry.path) for entry in files if entry.name.endswith(_ENDINGS) and entry.stat().st_size)


def _is_newer(checkpoint: Path) -> bool:
    """Whether the folder has a later checkpoint next to it."""
    number = checkpoint.name.rpartition("-")[2]
    with contextlib.suppress(OSError):
        for other in checkpoint.parent.glob("checkpoint-*/trainer_state.json"):
            later = other.parent.name.rpartition("-")[2]
            if number.isdigit() and later.isdigit() and int(later) > int(number):
                return True
    return False


# ---- what is known of them


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
        self._kept: dict[str, tuple[tuple[int, int], Summary | None]] = {}
        self._open: OrderedDict[str, ForeignLog] = OrderedDict()
        self._cache = JournalCache(cache)
        self._recounted: dict[str, tuple[int, StepCounts]] = {}

    def close(self) -> None:
        """Close the database."""
        self._cache.close()

    # ---- which runs

    def discover(self) -> None:
        """Look for runs and logs, not too deep."""
        found: dict[str, RunPlace] = {}
        for place in places_under(self.root):
            found[self.ident_of(place.path)] = place
        self._places = found
        for gone in self._kept.keys() - found.keys():
            self._kept.pop(gone, None)

    def ident_of(self, path: Path) -> str:
        """By what a run is called in addresses."""
        return hashlib.sha256(str(path.relative_to(self.root)).encode()).hexdigest()[:12]

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
        """Every run, the ones that need attention first, and of these the one with the fewest applied steps. Only files
        that changed are read.

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
        return sorted(found, key=lambda s: (s.state.rank, s.recent_applied / max(1, s.recent), s.name))

    @property
    def unread(self) -> int:
        """Runs that were found and not yet summarised."""
        return len(self._places.keys() - self._kept.keys())

    def summary(self, ident: str, *, now: float | None = None) -> Summary | None:
        """One run; `None` for a file that is no log. Its state depends on the time, all else on its file alone."""
        place, journal = self._places.get(ident), self._journal(ident)
        if place is None or (journal is None and not place.foreign):
            return None
        try:
            mark = stamp(place.path if journal is None else journal)
        except OSError:
            return None
        kept = self._kept.get(ident)
        if kept is None or kept[0] != mark:
            modified = mark[1] / 1e9
            if journal is None:
                kept = mark, summary_of_log(ident, place.path, self.root, modified=modified)
            else:
                best = self.counts(ident).best
                kept = mark, summary_of_run(ident, place.path, journal, self.root, modified=modified, best=best)
            self._kept[ident] = kept
        return None if kept[1] is None else kept[1].at(time.time() if now is None else now)

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
        run = open_run(journal, last_bytes=_TAIL_BYTES)
        count = len(run.main)

        def new() -> list[JournalRow]:
            nonlocal count
            run.refresh()
            before, count = count, len(run.main)
            return steps_as_rows(run.main)[before if before <= count else 0 :]

        return steps_as_rows(run.main), new

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

    def scan(self) -> bool:
        """Read a slice of each journal that has more than was read; False when nothing is left."""
        more = False
        for ident in list(self._places):
            more = self.scan_run(ident) or more
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
        new = appended(path, offset, most_bytes=most_bytes)
        if new.after == offset:
            return False
        self._cache.store(str(path), status.st_ino, counts, new)
        return new.after < status.st_size

    def counts(self, ident: str) -> StepCounts:
        """What was counted so far. A log counts nothing."""
        path = self._journal(ident)
        if path is None:
            return StepCounts()
        _, offset, counts = self._cache.state(str(path))
        if counts.starts_again:  # all of it is read once more: which steps count is only known at the end
            if self._recounted.get(ident, (-1, counts))[0] != offset:
                whole = StepCounts(best=counts.best)
                whole.add(open_run(path, columns=("step",)).tally())
                self._recounted[ident] = offset, whole
            return self._recounted[ident][1]
        return counts

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
