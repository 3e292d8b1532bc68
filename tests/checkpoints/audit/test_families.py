"""The newest healthy checkpoint, with few reads, and saves between which nothing was trained."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nantrap
from nantrap.checkpoints.audit import audit, auditing
from nantrap.checkpoints.audit.families import family_of, hints_of, newest_healthy, step_in_name
from nantrap.checkpoints.audit.verdict import CheckpointAudit
from nantrap.cli import main


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


# ---- saves between which the optimizer made no update


def save_epochs(folder: Path, *, trained: int) -> None:
    """Four epochs of five steps; only the first ones have gradients."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(4):
        for _ in range(5):
            optimizer.zero_grad()
            if epoch < trained:
                model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            folder / f"epoch_{epoch}.pt",
        )


def test_a_run_that_stopped_learning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_epochs(tmp_path, trained=2)
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "."]) == 0
    hint = (
        "./epoch_1.pt to ./epoch_3.pt: the optimizer made no update between them. Its counter stays at 10 while the "
        "epoch goes from 1 to 3 (NT505 dead_training)"
    )
    assert f"hint: {hint}\n" in capsys.readouterr().out
    assert nantrap.audit(".").to_dict()["hints"] == [hint]


def test_a_run_that_learned(tmp_path: Path) -> None:
    save_epochs(tmp_path, trained=4)
    report = nantrap.audit(tmp_path)
    assert report.hints == ()
    assert "hints" not in report.to_dict()


def saves(*facts: dict[str, int]) -> list[CheckpointAudit]:
    return [CheckpointAudit(f"step_{i}.pt", "torch", 1, 1, facts=each) for i, each in enumerate(facts)]


def test_steps_that_accumulate_gradients_are_no_dead_run() -> None:
    assert hints_of(saves({"step": 80, "optimizer_step": 10}, {"step": 84, "optimizer_step": 10})) == []
    assert len(hints_of(saves({"step": 80, "optimizer_step": 10}, {"step": 160, "optimizer_step": 10}))) == 1


def test_without_a_count_there_is_nothing_to_compare() -> None:
    assert hints_of(saves({"epoch": 1}, {"epoch": 2})) == []
    assert hints_of(saves({"optimizer_step": 5}, {"optimizer_step": 5})) == []
    assert hints_of(saves({"epoch": 2, "optimizer_step": 5}, {"epoch": 2, "optimizer_step": 5})) == []


def test_weights_alone_are_the_last_good_one_only_where_nothing_else_is(tmp_path: Path) -> None:
    """A script writes `model.pt` for others beside its checkpoint, a moment later: training goes on from the other."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # without a tensor of its own
    whole, weights = tmp_path / "checkpoint.pt", tmp_path / "model.pt"
    for newer, path in enumerate((whole, weights)):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 300}
        torch.save(state if path == whole else model.state_dict(), path)
        os.utime(path, (1000 + newer, 1000 + newer))
    assert audit(tmp_path).last_good == str(whole)
    torch.save({"model": {"weight": torch.full((2, 2), math.nan)}, "optimizer": optimizer.state_dict()}, whole)
    assert audit(tmp_path).last_good == str(weights)
