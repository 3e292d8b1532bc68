"""The list of bad samples: written by `nantrap data --quarantine`, honoured by `without_samples`.

`bad-samples.json` names files, sample indices and the rules they break, never any data:
`{"schema": "nantrap.bad-samples/1", "files": [{"file": "a.npz", "samples": 100, "bad": {"non_finite": [4]}}]}`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nantrap.doctor.data.findings import RULES, DataReport
from nantrap.errors import FormatError, UsageError

_SCHEMA: Final = "nantrap.bad-samples/1"
_WHOLE_FIELD: Final = ("constant_field", "scale_suspect")
"""Findings about a field as a whole: leaving samples out would not help."""


@dataclass(frozen=True, slots=True)
class BadSamples:
    """A list of bad samples.

    Attributes:
        lengths: every file that was checked, in order, with its number of samples.
        bad: sample indices by file and rule.
    """

    lengths: dict[str, int]
    bad: dict[str, dict[str, tuple[int, ...]]]

    @classmethod
    def of(cls, report: DataReport) -> BadSamples:
        """The bad samples of a report."""
        bad: dict[str, dict[str, tuple[int, ...]]] = {}
        for finding in report.findings:
            if finding.slug in _WHOLE_FIELD:
                continue
            known = bad.setdefault(finding.file, {}).get(finding.slug, ())
            bad[finding.file][finding.slug] = tuple(sorted({*known, *finding.indices}))
        return cls(dict(report.lengths), bad)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BadSamples:
        """Read a list. Raises `FormatError` if the file is none."""
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            if document["schema"] != _SCHEMA:
                raise FormatError(f"{os.fspath(path)}: schema is {document['schema']!r}, expected {_SCHEMA!r}")
            lengths = {entry["file"]: int(entry["samples"]) for entry in document["files"]}
            bad = {
                entry["file"]: {slug: tuple(int(index) for index in found) for slug, found in entry["bad"].items()}
                for entry in document["files"]
                if entry["bad"]
            }
        except OSError as error:
            raise UsageError(f"{os.fspath(path)}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"{os.fspath(path)} is not a list of bad samples ({type(error).__name__}: {error}); "
                "`nantrap data PATH --quarantine FILE` writes one"
            ) from error
        return cls(lengths, bad)

    def indices(self, file: str, rules: Sequence[str] | None = None) -> set[int]:
        """The bad samples of one file."""
        found = self.bad.get(file, {})
        return {index for slug, indices in found.items() if rules is None or slug in rules for index in indices}

    def is_whole_file(self, file: str, rules: Sequence[str] | None = None) -> bool:
        """Whether the file as a whole is bad: it could not be read at all."""
        slug = "unreadable_file"
        unread = slug in self.bad.get(file, {}) and not self.bad[file][slug]
        return unread and (rules is None or slug in rules)

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        files = [
            {
                "file": file,
                "samples": count,
                "bad": {slug: list(found) for slug, found in self.bad.get(file, {}).items()},
            }
            for file, count in self.lengths.items()
        ]
        return {"schema": _SCHEMA, "files": files}


def write_bad_samples(report: DataReport, path: str, *, force: bool = False) -> int:
    """Write the bad samples of a report as JSON, whole or not at all.

    Args:
        report: what was found.
        path: the file to write.
        force: replace a file that is there.

    Returns:
        How many samples are in the list.
    """
    if os.path.exists(path) and not force:
        raise UsageError(f"{path} exists; choose another name, or give --force to replace it")
    bad = BadSamples.of(report)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(bad.to_dict(), file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    return sum(len(bad.indices(file)) or bad.is_whole_file(file) for file in bad.lengths)


class WithoutSamples:
    """A dataset without its bad samples. `indices` are the samples that are left, by their old numbers."""

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
    file: str | None = None,
    rules: Sequence[str] | None = None,
) -> WithoutSamples | StreamWithoutSamples:
    """The dataset without the samples that `nantrap data --quarantine` found bad.

    Args:
        dataset: any dataset with `len` and `[]`, or an iterable one.
        bad_samples: the list, `bad-samples.json`.
        file: which file of the list the dataset reads, if there are several. A dataset that keeps a list of paths
            (`samples`, `imgs`, `paths`, `files`), such as `ImageFolder`, is matched by path. Otherwise the dataset
            must hold the samples of all files, in the order of the list.
        rules: only these, for example `["non_finite"]`; all by default.

    Returns:
        A dataset that can be given to a `DataLoader`.

    Example:
        >>> train = nantrap.without_samples(train, "bad-samples.json")  # doctest: +SKIP
    """
    unknown = [rule for rule in rules or () if rule not in RULES]
    if unknown:
        raise UsageError(f"no rule of the data check is called {unknown[0]!r}; there are {', '.join(RULES)}")
    listed = BadSamples.load(bad_samples)
    if file is not None:
        if file not in listed.lengths:
            raise UsageError(f"{file} is not in {os.fspath(bad_samples)}; it has {', '.join(list(listed.lengths)[:5])}")
        bad = listed.indices(file, rules)
    else:
        paths = _paths(dataset)
        bad = _by_path(listed, paths, rules) if paths else _by_order(listed, dataset, bad_samples, rules)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return StreamWithoutSamples(dataset, frozenset(bad))
    beyond = [index for index in bad if index >= len(dataset)]
    if beyond:
        raise UsageError(
            f"the list names sample {max(beyond):,}, but the dataset has only {len(dataset):,}: "
            "it was made from other files. Run `nantrap data` again"
        )
    return WithoutSamples(dataset, [index for index in range(len(dataset)) if index not in bad])


def _paths(dataset: Any) -> list[str]:
    """The paths a dataset reads, one per sample, if it keeps such a list."""
    for name in ("samples", "imgs", "paths", "files", "image_paths"):
        found = getattr(dataset, name, None)
        if isinstance(found, (list, tuple)) and found:
            firsts = [entry[0] if isinstance(entry, (tuple, list)) and entry else entry for entry in found]
            if all(isinstance(entry, (str, os.PathLike)) for entry in firsts):
                return [os.fspath(entry) for entry in firsts]
    return []


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
    if len(listed.lengths) > 1 and hasattr(dataset, "__len__"):
        total = sum(listed.lengths.values())
        if total != len(dataset):
            raise UsageError(
                f"{os.fspath(source)} lists {len(listed.lengths)} files with {total:,} samples, the dataset has "
                f"{len(dataset):,}; say which file it reads with file=..."
            )
    bad: set[int] = set()
    start = 0
    for file, count in listed.lengths.items():
        bad |= {start + index for index in listed.indices(file, rules)}
        start += count
    return bad
