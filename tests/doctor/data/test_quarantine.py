"""The list of bad samples: written once, read by `without_samples`, which gives a dataset without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import nantrap
from nantrap.doctor.data import check_data, write_bad_samples
from nantrap.errors import FormatError, UsageError


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    for name, bad in (("a.npy", 3), ("b.npy", 5)):
        x = np.random.default_rng(0).normal(size=(10, 20)).astype("f4")
        x[bad, 2] = np.nan
        x[7] = x[1]
        np.save(tmp_path / name, x)
    write_bad_samples(check_data(tmp_path), str(tmp_path / "bad-samples.json"))
    return tmp_path / "bad-samples.json"


def test_bad_samples_are_left_out(listed: Path) -> None:
    dataset = list(range(10))
    kept = nantrap.without_samples(dataset, listed, file=str(listed.parent / "a.npy"))
    assert list(kept) == [0, 1, 2, 4, 5, 6, 8, 9]
    assert len(kept) == 8  # type: ignore[arg-type]
    assert [int(x) for x in DataLoader(kept, batch_size=None)] == [0, 1, 2, 4, 5, 6, 8, 9]  # type: ignore[arg-type]


def test_only_some_rules(listed: Path) -> None:
    kept = nantrap.without_samples(list(range(10)), listed, file=str(listed.parent / "b.npy"), rules=["non_finite"])
    assert list(kept) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_all_files_one_after_the_other(listed: Path) -> None:
    kept = nantrap.without_samples(list(range(20)), listed)
    assert sorted(set(range(20)) - set(kept)) == [3, 7, 15, 17]


def test_a_stream(listed: Path) -> None:
    kept = nantrap.without_samples(iter(range(20)), listed)
    assert sorted(set(range(20)) - set(kept)) == [3, 7, 15, 17]


def test_a_dataset_with_paths(listed: Path, tmp_path: Path) -> None:
    class Folder:
        samples = ((str(tmp_path / "c.png"), 0), (str(tmp_path / "a.npy"), 1))

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return index

    assert list(nantrap.without_samples(Folder(), listed)) == [0]


def test_wrong_use(listed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lists 2 files with 20 samples, the dataset has 9; say which file"):
        nantrap.without_samples(list(range(9)), listed)
    with pytest.raises(UsageError, match="names sample 7, but the dataset has only 5"):
        nantrap.without_samples(list(range(5)), listed, file=str(tmp_path / "a.npy"))
    with pytest.raises(UsageError, match="there is no rule 'nan' of the data check"):
        nantrap.without_samples([], listed, rules=["nan"])
    with pytest.raises(UsageError, match="No such file"):
        nantrap.without_samples([], tmp_path / "none.json")
    (tmp_path / "other.json").write_text('{"x": 1}')
    with pytest.raises(FormatError, match="is not a list of bad samples"):
        nantrap.without_samples([], tmp_path / "other.json")
    with pytest.raises(UsageError, match="exists; choose another name"):
        write_bad_samples(check_data(tmp_path), str(listed))


def test_the_file_names_samples_and_never_data(listed: Path) -> None:
    document = json.loads(listed.read_text())
    assert document == {
        "schema": "nantrap.bad-samples/1",
        "files": [
            {
                "file": str(listed.parent / "a.npy"),
                "samples": 10,
                "bad": {"non_finite": [3], "duplicate_sample": [7]},
            },
            {
                "file": str(listed.parent / "b.npy"),
                "samples": 10,
                "bad": {"non_finite": [5], "duplicate_sample": [7]},
            },
        ],
    }
