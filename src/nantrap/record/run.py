"""A run on disk, whatever wrote it: opened without torch, read while it grows.

run = record.open_run("runs/exp1")       # a run folder of nantrap: all ranks, incidents, evaluations
run = record.open_run("train.log")       # or a log that nantrap did not write
run.main["loss"].value                   # numpy arrays, not a dictionary per step
run.refresh()                            # reads what was appended since
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nantrap.errors import NantrapError, path_argument
from nantrap.incident import Incident
from nantrap.record.columns import Column, Table
from nantrap.record.journal import RUN_ENDS
from nantrap.record.series import NAMES, Series, is_evaluation, normal_form
from nantrap.record.sources import JsonLines, LogSource, Records, TextLines, find_log, source_of
from nantrap.record.tally import StepTally, tally_of
from nantrap.record.textlog import LogNote

_JOURNAL = re.compile(r"journal-r(\d+)\.jsonl$")
_ALWAYS = frozenset({"kind", "event", "action", "by", "dropped", "incident", "metrics"})
_MOST_PROBLEMS = 20
_MOST_MARKS = 10_000


@dataclass(frozen=True, slots=True)
class IncidentFolder:
    """The folder of an incident. `incident` is `None` where its file cannot be read, and `error` says why.

    `part` is the folder of the optimizer whose incident it is, for those of the second optimizer on.
    """

    path: Path
    incident: Incident | None
    error: str = ""
    part: str = ""

    @property
    def name(self) -> str:
        """Its name within the run: `000012-r0`, or `optimizer-2/incidents/000012-r0`."""
        return f"{self.part}/incidents/{self.path.name}" if self.part else self.path.name


@dataclass(frozen=True, slots=True)
class JournalMark:
    """A line of the journal that is no step: `incident_begins` (a diagnosis), `exception`, `run_ends`.

    Attributes:
        event: what it says.
        step: the step it belongs to.
        row: the row of the steps that comes after it.
        fields: the whole line.
    """

    event: str
    step: int
    row: int
    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)


class _Stream:
    """One source and the tables it fills: the steps, and the evaluations among them."""

    def __init__(
        self, source: LogSource, rank: int, wanted: Callable[[str], bool] | None, *, own: bool = False
    ) -> None:
        self.source = source
        self._own = own
        self._rank = rank
        self._wanted = wanted
        self._clear()

    def _clear(self) -> None:
        self._steps, self._evaluations = Table(self._wanted), Table()
        self.series = Series(self._steps, rank=self._rank)
        self.evaluations = Series(self._evaluations, rank=self._rank)
        self.marks: list[JournalMark] = []
        self.source.problems.clear()

    @property
    def names_not_read(self) -> int:
        return self._steps.names_not_read + self._evaluations.names_not_read

    def refresh(self) -> bool:
        changed = self.source.begin_again()
        if changed:
            self._clear()
        for records in self.source.read():
            changed = changed or len(records) > 0
            self.take(records)
        return changed

    def take(self, records: Records) -> None:
        """Add records to the tables."""
        if steps := list(self._steps_among(records)):
            self._steps.extend(steps)

    def _steps_among(self, records: Records) -> Iterator[Mapping[str, Any]]:
        """The steps among these records; evaluations and marks are kept where they belong."""
        row = self._steps.rows
        for record in records:
            event = record.get("event") or record.get("kind")
            metrics = record.get("metrics")
            if event is None or event == "step" or not (self._own or (event == "eval" and isinstance(metrics, dict))):
                yield record  # also a line of another tool, with a field of that name
                row += 1
            elif event == "eval" and isinstance(metrics, dict):
                self._evaluations.extend([{**metrics, "step": record.get("step", 0)}])
            elif len(self.marks) < _MOST_MARKS:
                step = record.get("step")
                self.marks.append(JournalMark(str(event), step if isinstance(step, int) else -1, row, record))


class Run:
    """A run or a log. Holds the columns read so far and how far each file was read; see `open_run`.

    Attributes:
        path: the folder, or the log's file.
        name: its last part.
        kind: `nantrap`, `jsonl`, `json`, `csv`, `text` or `tensorboard`.
    """

    def __init__(
        self, path: Path, kind: str, streams: Mapping[int, _Stream], wanted: Callable[[str], bool] | None
    ) -> None:
        self.path = path
        self._wanted = wanted
        self.kind = kind
        self.name = path.resolve().name
        self._streams = dict(streams)
        self._info: tuple[int, Mapping[str, Any]] = (-1, MappingProxyType({}))
        self._incidents: dict[Path, IncidentFolder] = {}
        self._others: dict[Path, Run] = {}
        self.refresh()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.kind}, {len(self.main):,} rows, ranks {list(self.ranks)})"

    def _repr_html_(self) -> str:
        """For notebooks. The pages belong to a higher layer and are looked up when one is shown."""
        html: str = importlib.import_module("nantrap.report.notebook").run_html(self)
        return html

    # ---- what it holds

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that wrote a journal; `(0,)` for a foreign log."""
        return tuple(sorted(self._streams))

    @property
    def series(self) -> Mapping[int, Series]:
        """The steps of each rank."""
        return {rank: self._streams[rank].series for rank in self.ranks}

    @property
    def main(self) -> Series:
        """The steps of the lowest rank."""
        return self._streams[self.ranks[0]].series

    @property
    def others(self) -> tuple[Run, ...]:
        """The journals of the script's other optimizers: `optimizer-2` and so on, in the folder of the run."""
        return tuple(run for _, run in sorted(self._others.items(), key=lambda item: _number_of(item[0])))

    @property
    def info(self) -> Mapping[str, Any]:
        """`run.json`; empty for a foreign log."""
        return self._info[1]

    @property
    def evaluations(self) -> dict[str, Column]:
        """Results of evaluations by name: those of `guard.log_eval`, and `eval_*`, `val_*`, `test_*` of other logs."""
        own = self._streams[self.ranks[0]].evaluations
        found = {name: own[name] for name in own.names}
        steps = self.main
        return {**{name: steps[name] for name in steps.names if is_evaluation(name)}, **found}

    @property
    def incidents(self) -> tuple[IncidentFolder, ...]:
        """The incident folders of the run, of all optimizers, in the order of their steps."""

        def place(folder: IncidentFolder) -> tuple[int, str]:
            return (-1 if folder.incident is None else folder.incident.step), folder.name

        found = [*self._incidents.values()]
        found += [replace(folder, part=other.name) for other in self.others for folder in other.incidents]
        return tuple(sorted(found, key=place))

    @property
    def marks(self) -> tuple[JournalMark, ...]:
        """Lines of the lowest rank's journal that are no steps: the begin of a diagnosis, an exception."""
        return tuple(self._streams[self.ranks[0]].marks)

    def tally(self, rank: int | None = None) -> StepTally:
        """How many steps a rank made and what became of them, without what a later start did again.

        Without a rank: those of the lowest one, with all of its optimizers.
        """
        stream = self._streams[self.ranks[0] if rank is None else rank]
        step = stream.series.step
        last = (mark.fields for mark in stream.marks if not (step[mark.row :] < mark.step).any())
        found = tally_of(stream.series, last, rows=stream.series.current)
        for other in self.others if rank is None else ():
            found.add(other.tally())
        return found

    @property
    def notes(self) -> tuple[LogNote, ...]:
        """Lines of a text log that mention NaN or an error."""
        return tuple(
            note
            for stream in self._streams.values()
            if isinstance(stream.source, TextLines)
            for note in stream.source.notes
        )

    @property
    def lines(self) -> int:
        """How many lines of text logs were read."""
        return sum(stream.source.lines for stream in self._streams.values() if isinstance(stream.source, TextLines))

    @property
    def modified(self) -> float:
        """When a file of the run was last written, in seconds since the epoch."""
        own = [stream.source.modified for stream in self._streams.values()]
        return max(own + [other.modified for other in self.others])

    @property
    def total_steps(self) -> int | None:
        """How many steps the run is to have, where the log shows it."""
        planned = self.info.get("total_steps")
        return planned if isinstance(planned, int) else self._streams[self.ranks[0]].source.total_steps

    @property
    def steps_done(self) -> int:
        """How many steps of the total are done. nantrap counts steps from 0; logs with a total count from 1."""
        steps = self.main.step
        return (int(steps[-1]) + (self.kind == "nantrap")) if len(steps) else 0

    @property
    def end(self) -> JournalMark | None:
        """The line with which the run said that it is over; `None` for one that runs, was killed, or is foreign."""
        last = self.marks[-1] if self.marks else None
        return last if last is not None and last.event == RUN_ENDS and last.row >= len(self.main) else None

    @property
    def is_over(self) -> bool:
        """Whether the run said that it ended, or has made all its steps."""
        done = self.total_steps is not None and self.steps_done >= self.total_steps
        return done or self.end is not None

    @property
    def total_epochs(self) -> int | None:
        """How many epochs the run is to have, where the log shows it."""
        return self._streams[self.ranks[0]].source.total_epochs

    @property
    def names_not_read(self) -> int:
        """How many names of values were not read, because the log has too many."""
        return sum(stream.names_not_read for stream in self._streams.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read: the first few, and how many more there are."""
        found = [problem for rank in self.ranks for problem in self._streams[rank].source.problems]
        found += [folder.error for folder in self.incidents if folder.error]
        more = [f"and {len(found) - _MOST_PROBLEMS:,} more"] if len(found) > _MOST_PROBLEMS else []
        return tuple(found[:_MOST_PROBLEMS] + more)

    # ---- reading

    def refresh(self) -> bool:
        """Read what was written since the last call. True if anything was."""
        changed = self._read_folder() if self.kind == "nantrap" and self.path.is_dir() else False
        for stream in self._streams.values():
            changed = stream.refresh() or changed
        return changed

    def _read_folder(self) -> bool:
        """Read what changed beside the journals: `run.json`, incidents, new ranks. Returns whether anything did."""
        changed = False
        info = self.path / "run.json"
        try:
            stamp = info.stat().st_mtime_ns
            if stamp != self._info[0]:
                document = json.loads(info.read_text(encoding="utf-8"))
                self._info = (stamp, MappingProxyType(document if isinstance(document, dict) else {}))
                changed = True
        except (OSError, ValueError, RecursionError):
            pass  # not written yet, or by hand
        here = {path for path in (self.path / "incidents").glob("*-r*") if path.is_dir() and path.name[0] != "."}
        for gone in self._incidents.keys() - here:
            del self._incidents[gone]
        for path in sorted(here - self._incidents.keys()):
            self._incidents[path] = _read_incident(path)
            changed = True
        for other in self.others:
            changed = other.refresh() or changed
        for path in self.path.glob("optimizer-*"):
            if path not in self._others and _number_of(path) and (streams := _streams_of(path, self._wanted)):
                self._others[path] = Run(path, "nantrap", streams, self._wanted)
                changed = True
        for rank, path in _journals(self.path).items():  # a rank that came late
            if rank not in self._streams:
                self._streams[rank] = _Stream(JsonLines(path), rank, self._wanted, own=True)
        return changed


def open_run(
    path: str | os.PathLike[str],
    *,
    columns: Collection[str] | None = None,
    on_read: Callable[[int], None] | None = None,
    last_bytes: int | None = None,
) -> Run:
    """Open a run folder of nantrap, one of its journals, or a log that nantrap did not write.

    Args:
        path: a run folder; a journal; JSON lines; transformers' trainer_state.json; a CSV table such as Lightning's
            metrics.csv; a text log; a TensorBoard event file, or the folder of one.
        columns: read only these columns (names as in `Series.get`), for a journal that is too large to hold.
        on_read: called with the number of bytes after each piece of a file, for a progress bar.
        last_bytes: of a journal or a log of lines that is longer, read only this much of its end, and what is appended.

    Raises:
        UsageError: nothing can be read there; the message says what was looked for.

    Example:
        >>> import tempfile, pathlib
        >>> log = pathlib.Path(tempfile.mkdtemp()) / "train.log"
        >>> _ = log.write_text("step 1 | loss 2.5 | lr 1e-4\\nstep 2 | loss nan | lr 1e-4\\n")
        >>> open_run(log).main["loss"].value.tolist()
        [2.5, nan]
    """
    place = Path(path_argument(path, "open_run", "a run folder or a log, such as 'runs/exp1'"))
    wanted = None if columns is None else _only(columns)
    kind, streams = "nantrap", _streams_of(place, wanted)
    if not streams:
        place = find_log(place)
        kind, source = source_of(place)
        streams[0] = _Stream(source, 0, wanted)
    for stream in streams.values():
        stream.source.on_read = on_read
        if last_bytes is not None:
            stream.source.only_end(last_bytes)
    return Run(place, kind, streams, wanted)


def steps_of(lines: bytes) -> tuple[Series, list[JournalMark]]:
    """The steps in some lines of a journal, and its other lines. What is no JSON is left out."""
    source = JsonLines(Path("lines"))
    stream = _Stream(source, 0, None, own=True)
    stream.take(source.decode(lines))
    return stream.series, stream.marks


def _streams_of(path: Path, wanted: Callable[[str], bool] | None) -> dict[int, _Stream]:
    """The journals of a folder by rank; none if it is no run of nantrap."""
    return {rank: _Stream(JsonLines(file), rank, wanted, own=True) for rank, file in _journals(path).items()}


def _number_of(part: Path) -> int:
    """The number of the optimizer whose folder it is; 0 for another folder."""
    number = part.name.removeprefix("optimizer-")
    return int(number) if number.isdigit() else 0


def _journals(path: Path) -> dict[int, Path]:
    if path.is_dir():
        return {int(match[1]): file for file in path.glob("journal-r*.jsonl") if (match := _JOURNAL.search(file.name))}
    match = _JOURNAL.search(path.name)
    return {int(match[1]): path} if match and path.is_file() else {}


def _only(columns: Collection[str]) -> Callable[[str], bool]:
    """Whether a name of a log is among the wanted columns, or holds one of them."""
    forms = {normal_form(name) for name in columns}
    for name in {*columns, "step", "epoch"} & NAMES.keys() | {"step"}:
        forms |= {form.strip("_") for form in NAMES[name].split()}
    tops = {name.partition(".")[0] for name in columns}

    def wanted(name: str) -> bool:
        top = name.partition(".")[0]
        part_of_loss = "loss" in forms and "loss" in name.lower()
        return top in _ALWAYS or top in tops or part_of_loss or normal_form(name) in forms

    return wanted


def _read_incident(folder: Path) -> IncidentFolder:
    try:
        document = json.loads((folder / "incident.json").read_text(encoding="utf-8"))
        return IncidentFolder(folder, Incident.from_dict(document))
    except (OSError, ValueError, RecursionError, NantrapError) as error:
        return IncidentFolder(folder, None, f"{folder.name}: incident.json cannot be read: {error}")
