"""The list of bad samples, `bad-samples.json`: what `nantrap data --quarantine` and the guard write.

It names files, sample indices and the rules they break, never any data:
`{"schema": "nantrap.bad-samples/1", "files": [{"file": "a.npz", "samples": 100, "bad": {"non_finite": [4]}}]}`.
A guard that does not know which file a dataset reads writes the file name `dataset` and 0 samples, which means unknown.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nantrap.errors import FormatError, UsageError, path_argument
from nantrap.record.durable import write_atomically

SCHEMA: Final = "nantrap.bad-samples/1"
DATASET: Final = "dataset"
"""The file name of samples whose file is not known."""
_UNREADABLE: Final = "unreadable_file"
_SECONDS: Final = 60.0
"""How long a writer waits for another one."""


@dataclass(frozen=True, slots=True)
class BadSamples:
    """A list of bad samples.

    Attributes:
        lengths: every file that was checked, in order, with its number of samples; 0 if that is not known.
        bad: sample indices by file and rule.
    """

    lengths: dict[str, int] = field(default_factory=dict)
    bad: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BadSamples:
        """Read a list.

        Raises:
            UsageError: The file cannot be read.
            FormatError: It is no list of bad samples.
        """
        name = path_argument(path, "without_samples", "the path of a list, such as 'bad-samples.json'")
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            if document["schema"] != SCHEMA:
                raise FormatError(f"{name}: schema is {document['schema']!r}, expected {SCHEMA!r}")
            lengths = {str(entry["file"]): int(entry["samples"]) for entry in document["files"]}
            bad = {
                str(entry["file"]): {
                    str(slug): tuple(int(index) for index in found) for slug, found in entry["bad"].items()
                }
                for entry in document["files"]
                if entry["bad"]
            }
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"{name} is not a list of bad samples ({type(error).__name__}: {error}); "
                "`nantrap data PATH --quarantine FILE` writes one"
            ) from error
        return cls(lengths, bad)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the list, whole or not at all. Raises `OSError`."""
        write_atomically(Path(path), json.dumps(self.to_dict(), indent=1) + "\n")

    def rules(self) -> set[str]:
        """Every rule that a sample of the list breaks."""
        return {slug for found in self.bad.values() for slug in found}

    def indices(self, file: str, rules: Sequence[str] | None = None) -> set[int]:
        """The bad samples of one file."""
        found = self.bad.get(file, {})
        return {index for slug, indices in found.items() if rules is None or slug in rules for index in indices}

    def rules_of(self, file: str, index: int) -> tuple[str, ...]:
        """The rules that one sample breaks, sorted; empty if it is not on the list."""
        return tuple(sorted(slug for slug, found in self.bad.get(file, {}).items() if index in found))

    def is_whole_file(self, file: str, rules: Sequence[str] | None = None) -> bool:
        """Whether the file as a whole is bad: it could not be read at all."""
        unread = _UNREADABLE in self.bad.get(file, {}) and not self.bad[file][_UNREADABLE]
        return unread and (rules is None or _UNREADABLE in rules)

    def place_of(self, index: int) -> tuple[str, int] | None:
        """File and index there of a sample of a dataset that holds all files one after the other.

        Returns:
            `None` if the list is about fewer samples, so it was made from other data.
        """
        if len(self.lengths) <= 1:
            file, count = next(iter(self.lengths.items()), (DATASET, 0))
            return (file, index) if not count or index < count else None
        for file, count in self.lengths.items():
            if index < count:
                return file, index
            index -= count
        return None

    def with_added(self, file: str, rule: str, indices: Sequence[int]) -> BadSamples:
        """The list with more bad samples of one file."""
        known = self.bad.get(file, {})
        changed = {**known, rule: tuple(sorted({*known.get(rule, ()), *indices}))}
        return BadSamples({**self.lengths, file: self.lengths.get(file, 0)}, {**self.bad, file: changed})

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
        return {"schema": SCHEMA, "files": files}


def add_to_list(path: str | os.PathLike[str], found: Mapping[tuple[str, str], Sequence[int]]) -> BadSamples:
    """Add bad samples to the list in a file, which is made if it is not there. Safe among several processes.

    Args:
        path: of the list.
        found: sample indices by file and rule.

    Returns:
        The list as it is in the file now, with what other processes added.
    """
    with _alone(Path(path)):
        listed = BadSamples.load(path) if os.path.exists(path) else BadSamples()
        for (file, rule), indices in found.items():
            listed = listed.with_added(file, rule, indices)
        listed.save(path)
    return listed


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """The ranks of a run add to one list: each waits for the others. Without file locks the last one wins."""
    from filelock import FileLock  # most runs have no list

    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=_SECONDS)
    if path.parent.is_dir():  # the lock would make a folder that is missing; writing says that it is
        with contextlib.suppress(OSError, NotImplementedError):  # a file system without locks, or a writer that hangs
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def below(dataset: Any) -> tuple[Any, list[int] | None]:
    """The dataset below every `Subset` and `without_samples`, and for each sample its number there.

    Returns:
        The dataset itself and `None` if it is no part of another one.
    """
    numbers: list[int] | None = None
    while {"dataset", "indices"} <= set(getattr(dataset, "__dict__", ())):
        indices = dataset.indices
        numbers = [int(indices[each]) for each in (range(len(indices)) if numbers is None else numbers)]
        dataset = dataset.dataset
    return dataset, numbers


def paths_of(dataset: Any) -> list[str]:
    """The paths a dataset reads, one per sample, if it keeps such a list, as `ImageFolder` does."""
    for name in ("samples", "imgs", "paths", "files", "image_paths"):
        found = getattr(dataset, name, None)
        if isinstance(found, (list, tuple)) and found:
            firsts = [entry[0] if isinstance(entry, (tuple, list)) and entry else entry for entry in found]
            if all(isinstance(entry, (str, os.PathLike)) for entry in firsts):
                return [os.fspath(entry) for entry in firsts]
    return []
