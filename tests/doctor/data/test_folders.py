"""Whole folders with known faults: everything is found at its place, and nothing else is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from doctor.data import blind_folders as blind_folders  # adds to both
from doctor.data.folders import FAULTY, HEALTHY, Folder
from nantrap.doctor.data import DataOptions, check_data
from nantrap.doctor.data.quarantine import bad_samples_of
from nantrap.engines import Threads

SHOWN = 20


def found(folder: Folder, path: Path) -> set[tuple[str, str, str | None, tuple[int, ...]]]:
    folder.write(path)
    report = check_data(path, options=DataOptions(**folder.options))
    return {
        (each.slug, str(Path(each.file).relative_to(path)), each.field, each.indices[:SHOWN])
        for each in report.findings
    }


@pytest.mark.parametrize("name", FAULTY)
def test_a_folder_with_a_fault(name: str, tmp_path: Path) -> None:
    assert found(FAULTY[name], tmp_path) == FAULTY[name].found


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_folder(name: str, tmp_path: Path) -> None:
    assert found(HEALTHY[name], tmp_path) == set()


class Backwards:
    """Gives the results in the reverse order."""

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        done = [(number, function(item)) for number, item in enumerate(items)]
        yield from reversed(done)


def test_the_order_in_which_workers_finish_changes_nothing(tmp_path: Path) -> None:
    for name, folder in (FAULTY | HEALTHY).items():
        (tmp_path / name).mkdir()
        folder.write(tmp_path / name)
    options = DataOptions(classes=10, vocab=1000, dtype="float16")
    first = check_data(tmp_path, options=options, engine=Threads(1))
    for engine in (Backwards(), Threads(4)):
        other = check_data(tmp_path, options=options, engine=engine)
        assert other == first
        assert list(other.lengths) == list(first.lengths)
        assert bad_samples_of(other).to_dict() == bad_samples_of(first).to_dict()
