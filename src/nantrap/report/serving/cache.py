"""Curves and counts of journals in SQLite, by the offset up to which each was read. May be deleted at any time."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import weakref
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median_low
from typing import Any

from nantrap.record import StepTally
from nantrap.report.journals import JournalRow, JournalSlice

BUCKET = 256
"""Steps of a bucket of the stored curves."""
_SCHEMA = 3
_TABLES = """
CREATE TABLE IF NOT EXISTS scans(path TEXT PRIMARY KEY, inode INT, offset INT, counts TEXT);
CREATE TABLE IF NOT EXISTS buckets(path TEXT, name TEXT, bucket INT, low REAL, middle REAL, high REAL, finite INT,
                                   nonfinite INT, PRIMARY KEY(path, name, bucket)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks(path TEXT, step INT, action TEXT, cause TEXT, PRIMARY KEY(path, step)) WITHOUT ROWID;
"""


@dataclass(slots=True)
class StepCounts(StepTally):
    """What was counted of one journal so far, its best loss and last step.

    `starts_again` says that a later start did steps again: the numbers of these lines cannot be added up.
    """

    best: float | None = None
    last_step: int = -1
    starts_again: bool = False

    def to_json(self) -> str:
        """The entry as the cache keeps it."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> StepCounts:
        """Read what `to_json` gave."""
        raw = json.loads(text)
        return cls(**{**raw, "causes": Counter(raw["causes"]), "guesses": Counter(raw["guesses"])})


class JournalCache:
    """Holds an open database: a file, or memory.

    Args:
        file: the file of the database; `None` keeps it in memory.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._database = _opened(file)
        weakref.finalize(self, self._database.close)  # Python 3.13 warns of a connection that is left open

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    def curves(self, path: str, first: int, last: int, *, points: int = 600) -> dict[str, Any]:
        """Curves of the stored buckets, joined so that there are at most about `points` columns."""
        join = max(1, math.ceil((last - first + 1) / BUCKET / points))
        with self._lock:
            found = self._database.execute(
                "SELECT name, bucket / ?, MIN(low), AVG(middle), MAX(high), SUM(finite), SUM(nonfinite) FROM buckets "
                "WHERE path = ? AND bucket BETWEEN ? AND ? GROUP BY name, bucket / ? ORDER BY name, bucket / ?",
                (join, path, first // BUCKET, last // BUCKET, join, join),
            ).fetchall()
            marks = self._database.execute(
                "SELECT step, action, cause FROM marks WHERE path = ? AND step BETWEEN ? AND ? "
                "ORDER BY step LIMIT 5000",
                (path, first, last),
            ).fetchall()
        columns: dict[str, list[list[Any]]] = {}
        for name, place, low, middle, high, finite, nonfinite in found:
            columns.setdefault(name, []).append([place * join * BUCKET, low, middle, high, finite, nonfinite])
        return {"first": first, "last": last, "width": join * BUCKET, "columns": columns, "marks": marks}

    def state(self, path: str) -> tuple[int, int, StepCounts]:
        """How far a journal was read (inode, offset), and its counts up to there; -1 and 0 if it must be read again."""
        with self._lock:
            found = self._database.execute("SELECT inode, offset, counts FROM scans WHERE path = ?", (path,)).fetchone()
        if found is None:
            return -1, 0, StepCounts()
        try:
            return int(found[0]), int(found[1]), StepCounts.from_json(found[2])
        except (ValueError, TypeError, KeyError):
            return -1, 0, StepCounts()

    def forget(self, path: str) -> None:
        with self._lock, self._database:
            for table in ("scans", "buckets", "marks"):
                self._database.execute(f"DELETE FROM {table} WHERE path = ?", (path,))

    def store(self, path: str, inode: int, counts: StepCounts, slice_: JournalSlice) -> None:
        """Keep what new rows say, in one transaction: curves in buckets, steps that were not applied, counts."""
        buckets: dict[tuple[str, int], tuple[list[float], int]] = {}
        marks = []
        counts.add(slice_.tally)
        for row in slice_.rows:
            _note_best(counts, row)
            counts.starts_again = counts.starts_again or row.step < counts.last_step
            counts.last_step = row.step
            if row.is_event:
                marks.append((path, row.step, row.action, row.cause))
            for name, number in row.numbers.items():
                good, bad = buckets.get((name, row.step // BUCKET), ([], 0))
                if math.isfinite(number):
                    good.append(number)
                buckets[name, row.step // BUCKET] = good, bad + (not math.isfinite(number))
        merged = [
            (path, name, place, min(good, default=None), median_low(good) if good else None, max(good, default=None),
             len(good), bad)
            for (name, place), (good, bad) in buckets.items()
        ]  # fmt: skip
        with self._lock, self._database:
            self._database.executemany(
                "INSERT INTO buckets VALUES(?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT(path, name, bucket) DO UPDATE SET "
                "low = MIN(COALESCE(low, excluded.low), COALESCE(excluded.low, low)), "
                "high = MAX(COALESCE(high, excluded.high), COALESCE(excluded.high, high)), "
                "middle = COALESCE(excluded.middle, middle), finite = finite + excluded.finite, "
                "nonfinite = nonfinite + excluded.nonfinite",
                merged,
            )
            self._database.executemany("INSERT OR REPLACE INTO marks VALUES(?, ?, ?, ?)", marks)
            self._database.execute(
                "INSERT OR REPLACE INTO scans VALUES(?, ?, ?, ?)", (path, inode, slice_.after, counts.to_json())
            )


def _opened(cache: Path | None) -> sqlite3.Connection:
    """The database; a damaged one, or one of another version, is thrown away, and without a disk it is in memory."""
    if cache is not None:
        for _ in range(2):
            database: sqlite3.Connection | None = None
            try:
                cache.parent.mkdir(parents=True, exist_ok=True)
                database = sqlite3.connect(cache, check_same_thread=False, timeout=5.0)
                if database.execute("PRAGMA user_version").fetchone()[0] not in (0, _SCHEMA):
                    raise sqlite3.DatabaseError("another version")
                database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_TABLES}")
                database.execute(f"PRAGMA user_version = {_SCHEMA}")
                return database
            except (sqlite3.DatabaseError, OSError):
                if database is not None:
                    database.close()
                with contextlib.suppress(OSError):
                    cache.unlink()
    in_memory = sqlite3.connect(":memory:", check_same_thread=False)
    in_memory.executescript(_TABLES)
    return in_memory


def _note_best(counts: StepCounts, row: JournalRow) -> None:
    """Note the best loss of a run."""
    loss = row.numbers.get("loss", math.nan)
    if row.action == "apply" and math.isfinite(loss) and row.step > 20:
        # a slow mean keeps one lucky batch from being called the best
        counts.best = loss if counts.best is None else min(counts.best, 0.98 * counts.best + 0.02 * loss)
