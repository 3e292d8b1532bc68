"""The list of bad samples: written by `nantrap data --quarantine` and by the guard, honoured by `without_samples`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

from nantrap.doctor.data.findings import DataReport
from nantrap.errors import UsageError
from nantrap.incident.checks import DATA_RULES
from nantrap.incident.wording import counted, some_of
from nantrap.record.bad_samples import DATASET, BadSamples, below, paths_of

_WHOLE_FIELD: Final = ("constant_field", "scale_suspect")
"""Findings about a field as a whole: leaving samples out would not help."""


def bad_samples_of(report: DataReport) -> BadSamples:
    """The bad samples of a report."""
    bad: dict[str, dict[str, tuple[int, ...]]] = {}
    for finding in report.findings:
        if finding.slug in _WHOLE_FIELD:
            continue
        known = bad.setdefault(finding.file, {}).get(finding.slug, ())
        bad[finding.file][finding.slug] = tuple(sorted({*known, *finding.indices}))
    return BadSamples(dict(report.lengths), bad)


def check_target(path: str, *, force: bool) -> None:
    """Whether a list can be written there, asked before gigabytes are read. Raises `UsageError`."""
    if os.path.exists(path) and not os.path.isfile(path):  # a folder, or a device, which must not be replaced
        raise UsageError(f"{path} is not a file; give the name of a list, such as bad-samples.json")
    if os.path.exists(path) and not force:
        raise UsageError(f"{path} exists; choose another name, or give --force to replace it")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"cannot write {path}: there is no folder {folder}")


def write_bad_samples(report: DataReport, path: str, *, force: bool = False) -> int:
    """Write the bad samples of a report as JSON, whole or not at all.

    Args:
        report: what was found.
        path: the file to write.
        force: replace a file that is there.

    Returns:
        How many samples are in the list.
    """
    check_target(path, force=force)
    bad = bad_samples_of(report)
    try:
        bad.save(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; nothing is left of it") from error
    return sum(len(bad.indices(file)) or bad.is_whole_file(file) for file in bad.lengths)


class WithoutSamples:
    """A dataset without its bad samples. `indices` are the samples that are left, by their old numbers.

    What is not defined here (`classes`, `transform`, `set_epoch`) is that of the dataset itself.
    """

    def __init__(self, dataset: Any, indices: list[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[index] for index in self.indices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # not there yet while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)


class StreamWithoutSamples:
    """An iterable dataset without its bad samples, counted in the order in which they come."""

    def __init__(self, dataset: Any, bad: frozenset[int]) -> None:
        self.dataset = dataset
        self.bad = bad

    def __iter__(self) -> Iterator[Any]:
        return (sample for index, sample in enumerate(self.dataset) if index not in self.bad)


def without_samples(
    dataset: Any,
    bad_samples: str | os.PathLike[str],
    *,
    file: str | Sequence[str] | None = None,
    rules: Sequence[str] | None = None,
) -> WithoutSamples | StreamWithoutSamples:
    """The dataset without the samples that `nantrap data --quarantine` or a guard with `bad_samples=` found bad.

    Args:
        dataset: any dataset with `len` and `[]`, or an iterable one.
        bad_samples: the list, `bad-samples.json`.
        file: which file of the list the dataset reads, if there are several; a list of files that are read in
            parallel (`["x.npy", "y.npy"]`), whose bad samples are all left out. A dataset that keeps a list of paths
            (`samples`, `imgs`, `paths`, `files`), such as `ImageFolder`, is matched by path. Otherwise the dataset
            must hold the samples of all files, in the order of the list. Of a `Subset` the samples of the dataset
            below it are meant.
        rules: only these, for example `["non_finite"]`, or the causes under which a guard added samples; all by
            default.

    Returns:
        A dataset that can be given to a `DataLoader`.

    Example:
        >>> train = nantrap.without_samples(train, "bad-samples.json")  # doctest: +SKIP
    """
    listed = BadSamples.load(bad_samples)
    known = {*DATA_RULES, *listed.rules()}  # the guard adds samples under the name of the cause
    unknown = [rule for rule in rules or () if rule not in known]
    if unknown:
        raise UsageError(f"there is no rule {unknown[0]!r} of the data check; choose from {', '.join(sorted(known))}")
    whole, numbers = below(dataset)
    if file is not None:
        names = [file] if isinstance(file, str) else list(file)
        for name in names:
            if name not in listed.lengths:
                known_files = some_of(list(listed.lengths), 5)
                raise UsageError(f"{name} is not in {os.fspath(bad_samples)}; it has {known_files}")
        bad = {index for name in names for index in listed.indices(name, rules)}
    else:
        paths = paths_of(whole)
        if paths:  # samples that a guard added without knowing their files are counted in the dataset
            bad = _by_path(listed, paths, rules) | listed.indices(DATASET, rules)
        else:
            bad = _by_order(listed, whole, bad_samples, rules)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return StreamWithoutSamples(dataset, frozenset(bad))
    beyond = [index for index in bad if index >= len(whole)] if hasattr(whole, "__len__") else []
    if beyond:
        raise UsageError(
            f"the list names sample {max(beyond):,}, but the dataset has only {len(whole):,}: "
            "it was made from other files. Run `nantrap data` again"
        )
    kept = [index for index in range(len(dataset)) if (index if numbers is None else numbers[index]) not in bad]
    return WithoutSamples(dataset, kept)


def _by_path(listed: BadSamples, paths: Sequence[str], rules: Sequence[str] | None) -> set[int]:
    bad_files = {
        os.path.realpath(file)
        for file in listed.lengths
        if listed.indices(file, rules) or listed.is_whole_file(file, rules)
    }
    return {index for index, path in enumerate(paths) if os.path.realpath(path) in bad_files}


def _by_order(
    listed: BadSamples, dataset: Any, source: str | os.PathLike[str], rules: Sequence[str] | None
) -> set[int]:
    """The bad indices of a dataset that reads the listed files one after the other; raises if the lengths differ."""
    total = sum(listed.lengths.values())
    known = listed.lengths.get(DATASET, 1) > 0  # a guard adds samples without knowing how many there are
    if known and hasattr(dataset, "__len__") and total != len(dataset):
        count = len(listed.lengths)
        raise UsageError(
            f"{os.fspath(source)} lists {counted(count, 'file')} with {total:,} samples, the dataset "
            f"has {len(dataset):,}; say which file it reads with file=..., or which files in parallel"
        )
    bad: set[int] = set()
    start = 0
    for file, count in listed.lengths.items():
        bad |= {start + index for index in listed.indices(file, rules)}
        start += count
    return bad
