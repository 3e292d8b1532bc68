"""Which runs there are, their state, and their whole curves, without reading what was read before.

A run is listed from the end of its journal. Its curves and counts are gathered in the background, in slices, and kept
in SQLite by the offset up to which each journal was read. The database is a cache: it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, median_low
from typing import Any

from nantrap.incident import BY_SLUG
from nantrap.report.serving.journals import Row, appended, finite_or_none, run_end, tail
from nantrap.report.serving.state import RECENT, Recent, State, state_of
from nantrap.report.surroundings import read_json
from nantrap.report.visible import visible

BUCKET = 256
"""Steps of a bucket of the stored curves."""
_SPARK = 60
_TAIL_BYTES = 96 * 1024
_DEPTH = 4
_MOST_RUNS = 20_000
_SCHEMA = 2
_TABLES = """
CREATE TABLE IF NOT EXISTS scans(path TEXT PRIMARY KEY, inode INT, offset INT, counts TEXT);
CREATE TABLE IF NOT EXISTS buckets(path TEXT, name TEXT, bucket INT, low REAL, middle REAL, high REAL, finite INT,
                                   nonfinite INT, PRIMARY KEY(path, name, bucket)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS marks(path TEXT, step INT, action TEXT, cause TEXT, PRIMARY KEY(path, step)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """One run as the list shows it. `ident` is all that an address holds of it."""

    ident: str
    name: str
    path: Path
    state: State
    step: int
    total: int | None
    loss: float
    spark: tuple[float, ...]
    recent: int
    recent_applied: int
    grad_norm: float
    lr: float
    scale: float | None
    incident: str
    incident_step: int | None
    modified: float
    ranks: tuple[int, ...]
    milliseconds: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, for the script of the page."""
        return {
            "id": self.ident, "name": self.name, "state": self.state.word, "tone": self.state.tone,
            "sign": self.state.sign, "reason": self.state.reason, "step": self.step, "total": self.total,
            "loss": finite_or_none(self.loss), "applied": self.recent_applied, "recent": self.recent,
            "modified": self.modified, "spark": [finite_or_none(v) for v in self.spark],
            "grad_norm": finite_or_none(self.grad_norm), "lr": finite_or_none(self.lr), "scale": self.scale,
            "incident": self.incident, "code": BY_SLUG[self.incident].code if self.incident in BY_SLUG else "",
            "incident_step": self.incident_step,
        }  # fmt: skip


@dataclass(slots=True)
class Counts:
    """What was counted of one journal so far."""

    steps: int = 0
    applied: int = 0
    skipped: int = 0
    rollbacks: int = 0
    stops: int = 0
    incidents: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    best: float | None = None


class Index:
    """The runs under a folder. Holds the summaries, by run, and an open database.

    Args:
        root: a folder of runs, or a run itself.
        cache: the file of the database; `None` keeps it in memory.
    """

    def __init__(self, root: Path, *, cache: Path | None = None) -> None:
        self.root = root.resolve()
        self._lock = threading.Lock()
        self._folders: dict[str, Path] = {}
        self._summaries: dict[str, tuple[tuple[int, int], Summary, Recent, int | None]] = {}
        self._database = _opened(cache)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._database.close()

    # ---- which runs

    def discover(self) -> None:
        """Look for runs: folders with a journal, not too deep."""
        found: dict[str, Path] = {}
        for folder in _runs_under(self.root):
            ident = hashlib.sha256(str(folder.relative_to(self.root)).encode()).hexdigest()[:12]
            found[ident] = folder
        self._folders = found
        for gone in self._summaries.keys() - found.keys():
            self._summaries.pop(gone, None)

    def folder(self, ident: str) -> Path | None:
        """The folder of a run. Only what was discovered has one: an address never becomes a path."""
        return self._folders.get(ident)

    def incident_folder(self, ident: str, name: str) -> Path | None:
        """The folder of an incident, if the run has one of that name."""
        run = self.folder(ident)
        if run is None:
            return None
        return next((folder for folder in incident_folders(run) if folder.name == name), None)

    def summaries(self, *, seconds: float = math.inf) -> list[Summary]:
        """Every run, the ones that need attention first. Only journals that changed are read.

        Args:
            seconds: stop reading after this time; runs that were not reached are missing, and come with a later call.
        """
        now, end = time.time(), time.monotonic() + seconds
        found = []
        for ident in list(self._folders):
            if ident in self._summaries or time.monotonic() < end:
                summary = self.summary(ident, now=now)
                if summary is not None:
                    found.append(summary)
        return sorted(found, key=lambda s: (s.state.rank, s.name))

    @property
    def unread(self) -> int:
        """Runs that were found and not yet summarised."""
        return len(self._folders.keys() - self._summaries.keys())

    def summary(self, ident: str, *, now: float | None = None) -> Summary | None:
        """One run. Its state depends on the time, everything else on its journal alone."""
        folder = self._folders.get(ident)
        if folder is None:
            return None
        journals = journals_of(folder)
        try:
            status = journals[0].stat()
        except (OSError, IndexError):
            return None
        mark = (status.st_size, status.st_mtime_ns)
        kept = self._summaries.get(ident)
        if kept is None or kept[0] != mark:
            best = self.counts(ident).best
            kept = (mark, *_summarised(ident, folder, journals, self.root, status.st_mtime, best))
            self._summaries[ident] = kept
        age = max(0.0, (time.time() if now is None else now) - status.st_mtime)
        return replace(kept[1], state=state_of(replace(kept[2], age=age, alive=_alive(kept[3]))))

    # ---- counts and curves, gathered in the background

    def scan(self, *, most_bytes: int = 4 * 1024 * 1024) -> bool:
        """Read a slice of each journal that has more than was read; False when nothing is left."""
        more = False
        for ident in list(self._folders):
            more = self.scan_run(ident, most_bytes=most_bytes) or more
        return more

    def scan_run(self, ident: str, *, most_bytes: int = 4 * 1024 * 1024) -> bool:
        """Read a slice of one journal. True if there is more to read."""
        folder = self._folders.get(ident)
        journals = journals_of(folder) if folder is not None else []
        if not journals:
            return False
        path = journals[0]
        try:
            status = path.stat()
        except OSError:
            return False
        inode, offset, counts = self._scan_state(str(path))
        if inode != status.st_ino or status.st_size < offset:
            self._forget(str(path))
            offset, counts = 0, Counts()
        if offset >= status.st_size:
            return False
        rows, after = appended(path, offset, most_bytes=most_bytes)
        if after == offset:
            return False
        self._store(str(path), status.st_ino, after, counts, rows)
        return after < status.st_size

    def counts(self, ident: str) -> Counts:
        """What was counted so far."""
        folder = self._folders.get(ident)
        journals = journals_of(folder) if folder is not None else []
        return self._scan_state(str(journals[0]))[2] if journals else Counts()

    def curves(self, ident: str, first: int, last: int, *, points: int = 600) -> dict[str, Any]:
        """Curves from the stored buckets, joined so that there are at most about `points` columns."""
        folder = self._folders.get(ident)
        journals = journals_of(folder) if folder is not None else []
        if not journals:
            return {"first": first, "last": last, "width": 1, "columns": {}, "marks": []}
        path = str(journals[0])
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
        read = self._scan_state(path)[1] / max(1, journals[0].stat().st_size)
        return {
            "first": first, "last": last, "width": join * BUCKET, "columns": columns, "marks": marks,
            "read": round(min(1.0, read), 3),
        }  # fmt: skip

    def _scan_state(self, path: str) -> tuple[int, int, Counts]:
        with self._lock:
            found = self._database.execute("SELECT inode, offset, counts FROM scans WHERE path = ?", (path,)).fetchone()
        if found is None:
            return -1, 0, Counts()
        try:
            return int(found[0]), int(found[1]), Counts(**json.loads(found[2]))
        except (ValueError, TypeError):
            return -1, 0, Counts()

    def _forget(self, path: str) -> None:
        with self._lock, self._database:
            for table in ("scans", "buckets", "marks"):
                self._database.execute(f"DELETE FROM {table} WHERE path = ?", (path,))

    def _store(self, path: str, inode: int, offset: int, counts: Counts, rows: Iterable[Row]) -> None:
        buckets: dict[tuple[str, int], tuple[list[float], int]] = {}
        marks = []
        for row in rows:
            _count(counts, row)
            if row.action != "apply" or row.incident:
                marks.append((path, row.step, row.action, str(row.incident.get("cause") or "")))
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
        document = json.dumps({name: getattr(counts, name) for name in Counts.__slots__})
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
            self._database.execute("INSERT OR REPLACE INTO scans VALUES(?, ?, ?, ?)", (path, inode, offset, document))


def incident_folders(run: Path) -> list[Path]:
    """The folders of the incidents of a run, by name."""
    try:
        return sorted(p for p in (run / "incidents").iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def _opened(cache: Path | None) -> sqlite3.Connection:
    """The database; a damaged one, or one of another version, is thrown away, and without a disk it is in memory."""
    if cache is not None:
        for _ in range(2):
            try:
                cache.parent.mkdir(parents=True, exist_ok=True)
                database = sqlite3.connect(cache, check_same_thread=False, timeout=5.0)
                if database.execute("PRAGMA user_version").fetchone()[0] not in (0, _SCHEMA):
                    raise sqlite3.DatabaseError("another version")
                database.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; {_TABLES}")
                database.execute(f"PRAGMA user_version = {_SCHEMA}")
                return database
            except (sqlite3.DatabaseError, OSError):
                with contextlib.suppress(OSError):
                    cache.unlink()
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript(_TABLES)
    return database


def _runs_under(root: Path) -> list[Path]:
    found: list[Path] = []
    waiting = [(root, 0)]
    while waiting and len(found) < _MOST_RUNS:
        folder, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name.startswith("journal-r") and entry.name.endswith(".jsonl") for entry in entries):
            found.append(folder)
            continue
        if depth < _DEPTH:
            for entry in entries:
                if entry.name[:1] not in (".", "_") and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
    return sorted(found)


def journals_of(folder: Path) -> list[Path]:
    """The journals of a run in the order of their ranks."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.glob("journal-r*.jsonl"):
            number = path.name.removeprefix("journal-r").removesuffix(".jsonl")
            if number.isdigit() and path.is_file():
                found.append((int(number), path))
    return [path for _, path in sorted(found)]


def _summarised(
    ident: str, folder: Path, journals: list[Path], root: Path, modified: float, best: float | None
) -> tuple[Summary, Recent, int | None]:
    """What the list shows of a run, and what its state is judged by."""
    rows = tail(journals[0], most_bytes=_TAIL_BYTES)
    info = read_json(folder / "run.json")
    losses = [row.numbers.get("loss", math.nan) for row in rows]
    recent = rows[-RECENT:]
    usual = median([row.milliseconds for row in recent]) if recent else 0.0
    last = rows[-1] if rows else None
    incident = next((row for row in reversed(rows) if row.incident or row.action in ("skip", "rollback", "stop")), None)
    total = info.get("total_steps")
    end = run_end(journals[0])
    judged = Recent(
        losses=[row.numbers.get("loss", math.nan) for row in recent],
        actions=[row.action for row in recent],
        milliseconds=usual,
        steps=last.step + 1 if last else 0,
        total=total if isinstance(total, int) else None,
        incidents=len(incident_folders(folder)),
        since_incident=last.step - incident.step if last and incident else None,
        ended=end is not None,
        error=visible(end.get("error", "")) if end is not None else "",
        best=best,
    )
    relative = folder.relative_to(root).as_posix()
    numbers: Mapping[str, float] = last.numbers if last else {}
    summary = Summary(
        ident=ident,
        name=folder.name if relative == "." else relative,
        path=folder,
        state=state_of(judged),
        step=last.step if last else 0,
        total=total if isinstance(total, int) else None,
        loss=numbers.get("loss", math.nan),
        spark=tuple(_thinned(losses[-600:])),
        recent=len(rows),
        recent_applied=sum(1 for row in rows if row.action == "apply"),
        grad_norm=numbers.get("grad_norm", math.nan),
        lr=numbers.get("lr", math.nan),
        scale=numbers.get("scale"),
        incident=str(incident.incident.get("cause") or incident.action) if incident else "",
        incident_step=incident.step if incident else None,
        modified=modified,
        ranks=tuple(range(len(journals))),
        milliseconds=usual,
    )
    return summary, judged, _process(info)


def _thinned(values: list[float]) -> list[float]:
    """At most 60 values for a spark; a group with a NaN in it is NaN, so that no gap is hidden."""
    if len(values) <= _SPARK:
        return values
    groups = [values[len(values) * i // _SPARK : len(values) * (i + 1) // _SPARK] for i in range(_SPARK)]
    return [math.nan if any(not math.isfinite(v) for v in group) else max(group) for group in groups]


def _process(info: Mapping[str, Any]) -> int | None:
    """The process of the last start of a run."""
    starts = [info, *(entry for entry in info.get("resumed", ()) if isinstance(entry, dict))]
    pid = starts[-1].get("pid")
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 else None


def _alive(pid: int | None) -> bool | None:
    """Whether a process is running. For a run on another machine this is not known."""
    if pid is None or os.name != "posix":
        return None
    try:
        os.kill(pid, 0)  # signal 0 asks and does nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _count(counts: Counts, row: Row) -> None:
    counts.steps += 1
    counts.applied += row.action == "apply"
    counts.skipped += row.action == "skip"
    counts.rollbacks += row.action == "rollback"
    counts.stops += row.action == "stop"
    if row.incident:
        counts.incidents += 1
        cause = str(row.incident.get("cause") or "unknown")
        if cause in counts.causes or len(counts.causes) < 200:
            counts.causes[cause] = counts.causes.get(cause, 0) + 1
    loss = row.numbers.get("loss", math.nan)
    if row.action == "apply" and math.isfinite(loss) and row.step > 20:
        # a slow mean keeps one lucky batch from being called the best
        counts.best = loss if counts.best is None else min(counts.best, 0.98 * counts.best + 0.02 * loss)
