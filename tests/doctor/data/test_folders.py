"""Whole folders with known faults: everything is found at its place, and nothing else is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.data.folders import FAULTY, HEALTHY, Folder
from nantrap.doctor.data import DataOptions, check_data

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
