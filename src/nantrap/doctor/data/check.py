"""`check_data`: from paths to a report. Finds the files, has their shards measured, judges file by file."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nantrap.doctor.data.findings import DataFinding, DataReport, FieldSpan, data_finding
from nantrap.doctor.data.judge import ctc_finding, different_lengths, infeasible_samples, judge_file, missing_in_samples
from nantrap.doctor.data.measures import Measures, joined, joined_span
from nantrap.doctor.data.readers import (
    combined,
    digests,
    factory,
    format_of,
    format_of_content,
    images,
    open_arrays,
    plan_file,
    read_array,
    scan_shard,
)
from nantrap.doctor.data.readers.arrays import ArrayFile
from nantrap.doctor.data.readers.csv_files import ROW
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.rows import Array, Indices
from nantrap.doctor.data.shards import CHANGED, DataProblem, Plan, Scanned, Shard, UnreadableDataError
from nantrap.doctor.data.stored import file_size, list_folder, open_source
from nantrap.engines import Engine, Threads, in_order
from nantrap.errors import NantrapError, UsageError
from nantrap.incident.wording import some_of
from nantrap.problems.progress import ReadingProgress

_ARRAY_FORMATS = ("npy", "npz", "torch", "safetensors", "hdf5")
_IMAGES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    root: str
    format: str | None
    size: int


def check_data(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    options: DataOptions | None = None,
    engine: Engine | None = None,
    progress: ReadingProgress | None = None,
) -> DataReport:
    """Check data files for what makes training fail or its results wrong. Nothing in a file is executed.

    Args:
        paths: files, folders, globs, URLs of fsspec, or `module:dataset`, which is imported and run.
        options: what is known about the data.
        engine: who does the work; threads of this process by default.
        progress: callbacks of a progress bar.

    Returns:
        A report with all findings, file by file.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    names = [os.fspath(path) for path in given]
    chosen = options or DataOptions()
    listener = progress or ReadingProgress()
    factories = [name for name in names if factory.is_factory(name)]
    datasets = [(name, factory.make_dataset(name)) for name in factories]
    findings: list[DataFinding] = []
    runs: list[str] = []
    files, not_read = _files([name for name in names if name not in factories], findings, runs)
    if not files and not findings and not datasets:
        raise UsageError(f"{', '.join(names)}: no data file of a known kind was found")
    listener.on_total(sum(file.size for file in files))
    run = _Run(chosen, engine or Threads(), listener, findings, {})
    if runs:
        verb, what = ("is a run", "it") if len(runs) == 1 else ("are runs", "them")
        run.notes.append(f"{some_of(runs)} {verb} of nantrap and no data: nantrap check judges {what}")
    run.images([file for file in files if file.format == "image"])
    run.tables([file for file in files if file.format != "image"])
    for name, dataset in datasets:
        size = len(dataset) if hasattr(dataset, "__len__") else None
        run.judge(name, None, Plan(()), [factory.scan(dataset, chosen, functools.partial(_advance, listener, size))])
    run.check_names()
    order = {file.path: number for number, file in enumerate(files)}
    lengths = {file.path: run.lengths.get(file.path, 0) for file in files} | {
        name: run.lengths.get(name, 0) for name in factories
    }
    findings.sort(key=lambda each: (order.get(each.file, len(order)), each.file, each.code, str(each.field)))
    size = sum(file.size for file in files)
    return DataReport(tuple(names), lengths, size, tuple(findings), run.all_notes(), run.spans(), tuple(not_read))


def _advance(listener: ReadingProgress, size: int | None, done: int) -> None:
    listener.on_samples(done, size)


@dataclass(slots=True)
class _Run:
    """One check on its way: what was found so far, and how many samples each file has."""

    options: DataOptions
    engine: Engine
    progress: ReadingProgress
    findings: list[DataFinding]
    lengths: dict[str, int]
    names: dict[str, None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    without_numbers: list[str] = field(default_factory=list)
    fields: dict[str, list[Measures]] = field(default_factory=dict)

    def spans(self) -> tuple[FieldSpan, ...]:
        """Minimum, maximum and mean of each field, over all files that have it."""
        found = []
        for name, parts in self.fields.items():
            span, values = joined_span([part.span for part in parts]), sum(part.values for part in parts)
            if span is not None and values:
                found.append(FieldSpan(name, values, *span, sum(part.total for part in parts) / values))
        return tuple(found)

    def all_notes(self) -> tuple[str, ...]:
        """What is worth knowing and is no finding. A file without numbers must not pass for a file that was checked."""
        few = self.without_numbers
        if not few:
            return tuple(self.notes)
        verb = "holds" if len(few) == 1 else "hold"
        text = f"{some_of(few, 3)} {verb} no numbers: only whether they can be read was checked"
        return (*self.notes, text.replace("they can", "it can") if len(few) == 1 else text)

    def check_names(self) -> None:
        """A field that the user named must be somewhere, or a requested check would not be made."""
        for option, wanted in (("--labels", self.options.labels), ("--mask", self.options.mask)):
            if wanted is None or not self.names:
                continue
            if not any(wanted in (name, re.split(r"[./\\]", name)[-1]) for name in self.names):
                known = some_of(sorted(self.names), 8)
                raise UsageError(f"{option} {wanted}: no file has such a field; there are {known}")

    def images(self, files: list[_File]) -> None:
        """All images, grouped by the path that led to them."""
        groups = [files[start : start + _IMAGES_AT_ONCE] for start in range(0, len(files), _IMAGES_AT_ONCE)]
        tasks = [[file.path for file in group] for group in groups]
        sizes = [sum(file.size for file in group) for group in groups]
        looked = in_order(self.engine, images.look_at, tasks, lambda number: self.progress.on_bytes(sizes[number]))
        roots = {file.path: file.root for file in files}
        by_root: dict[str, list[images.Pixels]] = {}
        for pixels in looked:
            for image in pixels:
                by_root.setdefault(roots[image.path], []).append(image)
                self.lengths[image.path] = 0 if image.error else 1
        for root, found in by_root.items():
            self.findings += images.judge_images(found, root)

    def tables(self, files: list[_File]) -> None:
        """All other files."""
        plans: dict[str, tuple[object, Plan]] = {}
        for file in files:
            try:
                plans[file.path] = (_identity(file.path), plan_file(file.path, _known(file)))
            except NantrapError:
                raise
            except Exception as error:
                self._unreadable(file.path, DataProblem(_words(error)))
                self.progress.on_bytes(file.size)
        shards = [shard for _, plan in plans.values() for shard in plan.shards]
        scan = functools.partial(_scan_safely, options=self.options)
        found = in_order(self.engine, scan, shards, lambda number: self.progress.on_bytes(shards[number].bytes))
        results: dict[str, list[Scanned]] = {path: [] for path in plans}
        for shard, scanned in zip(shards, found, strict=True):
            results[shard.path].append(scanned)
        for path, (identity, plan) in plans.items():
            kind = plan.shards[0].format if plan.shards else None
            made = combined(path, kind, results[path], self.options)
            if _identity(path) != identity:  # another file under the same name: its shards are of both
                made.append(Scanned(problems=[DataProblem(CHANGED)]))
            self.judge(path, kind, plan, made)
        self.findings += _mismatched_files({path: plan for path, (_, plan) in plans.items()}, self.lengths)

    def judge(self, path: str, format: str | None, plan: Plan, results: Iterable[Scanned]) -> None:
        """Everything about one file."""
        parts: dict[str | None, list[Measures]] = {}
        samples = 0
        problems = list(plan.problems)
        for scanned in results:
            samples += scanned.samples
            problems += scanned.problems
            for made in scanned.measures:
                parts.setdefault(None if made.field == ROW else made.field, []).append(made)
        fields = {name: joined(found) for name, found in parts.items()}
        stem = os.path.basename(path).partition(".")[0]
        for name, made in fields.items():
            kept = Measures(name, made.role, made.kind, total=made.total, values=made.values, span=made.span)
            self.fields.setdefault(stem if name is None else name, []).append(kept)
        self.names.update({stem if name is None else name: None for name in fields if name or format != "csv"})
        with contextlib.ExitStack() as stack:

            @functools.cache
            def again() -> ArrayFile:
                return stack.enter_context(open_arrays(path, str(format)))

            found = judge_file(path, fields, self.options, functools.partial(_confirm, again))
            if format in _ARRAY_FORMATS:
                found += different_lengths(path, fields)
                found = [each for each in found if each.slug != "ctc_infeasible"] + _ctc(path, again, fields, plan)
        if format in _ARRAY_FORMATS:
            samples = _most_common_length(fields)
        elif format == "tar":
            unread: dict[str | None, set[int]] = {}
            for problem in problems:
                unread.setdefault(problem.field, set()).update(problem.indices)
            found += missing_in_samples(path, fields, samples, unread)
        self.lengths[path] = samples
        self.findings += found
        self.notes += [f"{path}: {note}" for note in plan.notes]
        unjudged = any("were not judged" in note for note in plan.notes)
        numbers = any(made.kind not in ("text", "other") and made.rows for made in fields.values())
        if not problems and not unjudged and not numbers:
            self.without_numbers.append(path)
        by_field: dict[str | None, list[DataProblem]] = {}
        for problem in problems:
            by_field.setdefault(problem.field, []).append(problem)
        for together in by_field.values():
            self._unreadable(path, *together)

    def _unreadable(self, path: str, *problems: DataProblem) -> None:
        """Add one finding for all problems of a file that cannot be read."""
        indices = tuple(sorted({index for problem in problems for index in problem.indices}))
        messages = list(dict.fromkeys(problem.message for problem in problems))
        if CHANGED in messages:  # what else is wrong with it may be over already
            messages = [CHANGED]
        text = messages[0] if len(messages) == 1 else f"{messages[0]} (and {len(messages) - 1:,} more)"
        self.findings.append(
            data_finding(
                "unreadable_file", path, problems[0].field, indices, max(1, len(indices)), text, help=_help(problems[0])
            )
        )


def _help(problem: DataProblem) -> str:
    """What helps where a part was left out that may well be whole."""
    if problem.help or not problem.message.startswith("not read"):
        return problem.help
    return "it may be whole: write that part in smaller pieces, or read and check it yourself"


def _identity(path: str) -> object:
    """What changes when a local file is written or replaced; `None` for a URL."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _scan_safely(shard: Shard, *, options: DataOptions) -> Scanned:
    """A shard that cannot be read is a problem of its file, and never ends the check."""
    try:
        return scan_shard(shard, options)
    except NantrapError:  # a missing package, not a bad file
        raise
    except Exception as error:
        return Scanned(problems=[DataProblem(_words(error), shard.field)])


def _words(error: Exception) -> str:
    """Damaged bytes can make a reader raise anything; its message is the best description there is."""
    if isinstance(error, UnreadableDataError):
        return str(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return f"cannot be read: {text.partition(chr(10))[0][:200]}"


def _confirm(again: Callable[[], ArrayFile], made: Measures, indices: Indices) -> Array:
    try:
        return digests(again().field(made.field), indices)
    except UnreadableDataError:  # it was readable a moment ago; that it changed is reported by the scan
        return np.arange(len(indices), dtype=np.uint64)


def _ctc(
    path: str, again: Callable[[], ArrayFile], fields: dict[str | None, Measures], plan: Plan
) -> list[DataFinding]:
    try:
        found = infeasible_samples(fields, plan.shapes, lambda name: read_array(again(), name))
    except UnreadableDataError:
        return []
    return [ctc_finding(path, found[0], found[1])] if found is not None and found[1] else []


def _most_common_length(fields: dict[str | None, Measures]) -> int:
    counted = Counter(made.rows for made in fields.values())
    return max(counted, key=lambda length: (counted[length], length)) if counted else 0


def _mismatched_files(plans: dict[str, Plan], lengths: dict[str, int]) -> list[DataFinding]:
    """NT157, between the files of a series (part-000.npy, part-001.npy, ...): rank and sizes of their samples."""
    series: dict[tuple[str, str | None], dict[str, tuple[int, ...]]] = {}
    for path, plan in plans.items():
        for part, shape in plan.shapes.items():
            name = re.sub(r"\d+", "#", os.path.basename(path))
            series.setdefault((os.path.join(os.path.dirname(path), name), part), {})[path] = shape
    findings = []
    for (_, part), shapes in series.items():
        usual, count = Counter(shapes.values()).most_common(1)[0]
        if len(shapes) < 3 or 2 * count <= len(shapes):
            continue
        for path, shape in shapes.items():
            if shape != usual and not _differ_in_size_only(shape, usual):
                total = lengths.get(path, 0)
                text = f"samples of shape {list(shape)}, in most files of the series they are {list(usual)}"
                findings.append(data_finding("shape_mismatch", path, part, tuple(range(total)), total, text))
    return findings


def _differ_in_size_only(shape: tuple[int, ...], usual: tuple[int, ...]) -> bool:
    """Images of another height and width."""
    if len(shape) != 3 or len(usual) != 3:
        return False
    return (shape[0] == usual[0] and shape[0] in (1, 3, 4)) or (shape[2] == usual[2] and shape[2] in (1, 3, 4))


def _known(file: _File) -> str:
    """The format, by name or by content."""
    if file.format is not None:
        return file.format
    with open_source(file.path) as source:
        found = format_of_content(source.read(0, 512)) if source.size else None
    if found is None or found == "image":
        raise UnreadableDataError("no reader knows this kind of file" if file.size else "the file is empty")
    return found


def _files(names: Sequence[str], findings: list[DataFinding], runs: list[str]) -> tuple[list[_File], list[str]]:
    """Every file to read, each once, in order; and the files of a folder that no reader knows by their name.

    The runs of nantrap in a folder are put into `runs`.
    """
    files: dict[str, _File] = {}
    unknown: dict[str, None] = {}
    for name in names:
        if "://" not in name and not os.path.lexists(name):
            matched = sorted(glob.glob(name, recursive=True)) if glob.has_magic(name) else []
            if not matched:
                raise UsageError(f"{name} does not exist; give files, folders, globs in quotes or module:dataset")
        else:
            matched = [name]
        for path in matched:
            for file in _below(path, findings, runs):
                if file.format is None and file.root == path:
                    unknown[file.path] = None
                else:
                    files.setdefault(file.path, file)
    return list(files.values()), [path for path in unknown if path not in files]


def _below(path: str, findings: list[DataFinding], runs: list[str]) -> list[_File]:
    """The file, or the files below a folder."""
    closed: list[OSError] = []
    listed = list_folder(path, closed, runs)
    for error in closed:
        text = f"the folder cannot be read: {error.strerror or error}"
        findings.append(data_finding("unreadable_file", str(error.filename or path), None, (), 1, text))
    if listed is None:
        root = os.path.dirname(path) or "."
        known = format_of(path)
        size = file_size(path)
        if known is None:
            with open_source(path) as source:
                if format_of_content(source.read(0, 512)) == "image":
                    known = "image"
        return [_File(path, root, known, size)]
    return [_File(each, path, format_of(each), size) for each, size in listed]
