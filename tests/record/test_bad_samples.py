"""The list of bad samples in a file: what it means, and that several writers lose nothing."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from nantrap.errors import FormatError, UsageError
from nantrap.record.bad_samples import BadSamples, add_to_list, below


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    listed = BadSamples({"a.npy": 5, "b.npy": 4}, {"b.npy": {"non_finite": (1, 3)}})
    listed.save(tmp_path / "bad.json")
    assert BadSamples.load(tmp_path / "bad.json") == listed
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


def test_samples_are_counted_through_all_files() -> None:
    listed = BadSamples({"a.npy": 5, "b.npy": 4})
    assert [listed.place_of(index) for index in (0, 4, 5, 8, 9)] == [
        ("a.npy", 0), ("a.npy", 4), ("b.npy", 0), ("b.npy", 3), None,
    ]  # fmt: skip
    assert BadSamples({"a.npy": 5}).place_of(7) is None
    assert BadSamples().place_of(7) == ("dataset", 7)


def test_a_list_is_made_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    add_to_list(path, {("dataset", "log_of_zero"): [4]})
    listed = add_to_list(path, {("dataset", "log_of_zero"): [2, 4], ("dataset", "non_finite"): [9]})
    assert listed == BadSamples.load(path)
    assert json.loads(path.read_text()) == {
        "schema": "nantrap.bad-samples/1",
        "files": [{"file": "dataset", "samples": 0, "bad": {"log_of_zero": [2, 4], "non_finite": [9]}}],
    }
    assert listed.rules_of("dataset", 4) == ("log_of_zero",)


def _add(path: str, first: int) -> None:
    for index in range(first, first + 20):
        add_to_list(path, {("dataset", "non_finite"): [index]})


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "bad.json")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add, args=(path, 20 * number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
        assert writer.exitcode == 0
    assert BadSamples.load(path).indices("dataset") == set(range(60))


def test_what_is_no_list(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("", "[]", '{"schema": "nantrap.bad-samples/1"}', '{"schema": 1, "files": []}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(FormatError, match=r"other\.json"):
            add_to_list(path, {("dataset", "non_finite"): [1]})
        assert path.read_text() == text
    with pytest.raises(UsageError, match="No such file"):
        BadSamples.load(tmp_path / "none.json")


def test_parts_of_datasets() -> None:
    from torch.utils.data import Subset

    data = list("abcdefgh")
    part = Subset(Subset(data, [7, 5, 3, 1]), [0, 2])  # type: ignore[var-annotated, arg-type]
    assert below(part) == (data, [7, 3])
    assert below(data) == (data, None)
