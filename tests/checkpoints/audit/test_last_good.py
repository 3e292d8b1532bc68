"""The newest healthy checkpoint, with few reads."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nantrap.checkpoints.audit import audit, auditing
from nantrap.checkpoints.audit.last_good import family_of, newest_healthy, step_in_name


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_search_is_right_and_short_when_poison_stays(count: int, good: int) -> None:
    good = min(good, count)
    asked: list[int] = []

    def is_healthy(item: int) -> bool:
        asked.append(item)
        return item < good

    assert newest_healthy(range(count), is_healthy) == (good - 1 if good else None)
    assert len(asked) == len(set(asked))
    assert len(asked) <= 2 * math.log2(count + 1) + 2


@given(st.lists(st.booleans(), max_size=40))
def test_whatever_happened_the_result_is_healthy_and_its_successor_is_not(health: list[bool]) -> None:
    found = newest_healthy(range(len(health)), lambda item: health[item])
    if found is None:
        assert not health or not health[0]
    else:
        assert health[found]
        assert found == len(health) - 1 or not health[found + 1]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_100.pt", 100), ("runs/checkpoint-500", 500), ("epoch=3-step=1200.ckpt", 1200), ("global_step77/", 77),
        ("model_v2_0040.pt", 40), ("iter-9.pth", 9), ("best.pt", None), ("s3://b/run7/ckpt_12.safetensors", 12),
    ],
)  # fmt: skip
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_in_name(name) == step


def test_families() -> None:
    assert family_of("run1/step_10.pt") == family_of("run1/step_200.pt")
    assert family_of("run1/step_10.pt") != family_of("run2/step_10.pt")
    assert family_of("a/checkpoint-10/") == family_of("a/checkpoint-9")


def write_run(folder: Path, count: int, good: int) -> None:
    for step in range(count):
        value = 1.0 if step < good else torch.nan
        torch.save({"model": {"w": torch.tensor([value, 2.0])}, "step": step}, folder / f"step_{step}.pt")


def test_the_last_good_of_a_run_goes_by_step_and_not_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, 12, good=11)
    report = audit(tmp_path)
    assert report.last_good == str(tmp_path / "step_10.pt")
    assert [Path(c.path).name for c in report.checkpoints] == [f"step_{i}.pt" for i in range(12)]
    assert report.not_read == ()


def test_bisection_reads_few(tmp_path: Path) -> None:
    write_run(tmp_path, 40, good=25)
    report = audit(tmp_path, read_all=False)
    assert report.last_good == str(tmp_path / "step_24.pt")
    assert len(report.checkpoints) <= 10
    assert len(report.checkpoints) + len(report.not_read) == 40


def test_many_and_large_are_bisected_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, 20, good=5)
    assert not audit(tmp_path).not_read
    monkeypatch.setattr(auditing, "LARGE_BYTES", 1000)
    report = audit(tmp_path)
    assert report.not_read
    assert report.last_good == str(tmp_path / "step_4.pt")
    assert not audit(tmp_path, read_all=True).not_read


def test_a_cut_last_save_costs_one_more_read(tmp_path: Path) -> None:
    write_run(tmp_path, 30, good=30)
    newest = tmp_path / "step_29.pt"
    newest.write_bytes(newest.read_bytes()[:-300])
    report = audit(tmp_path, read_all=False)
    assert report.last_good == str(tmp_path / "step_28.pt")
    assert len(report.checkpoints) == 2


def test_across_families_the_step_inside_decides(tmp_path: Path) -> None:
    for name, step in (("last.pt", 30), ("epoch_1.pt", 10), ("epoch_2.pt", 20)):
        torch.save({"model": {"w": torch.ones(2)}, "step": step}, tmp_path / name)
        os.utime(tmp_path / name, (1000 - step, 1000 - step))
    assert audit(tmp_path).last_good == str(tmp_path / "last.pt")


def test_without_steps_the_time_decides(tmp_path: Path) -> None:
    for age, name in enumerate(("new.pt", "older.pt", "oldest.pt")):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert audit(tmp_path).last_good == str(tmp_path / "new.pt")


def test_none_is_good(tmp_path: Path) -> None:
    write_run(tmp_path, 3, good=0)
    assert audit(tmp_path).last_good is None
