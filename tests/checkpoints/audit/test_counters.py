"""Saves between which the optimizer made no update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import nantrap
from nantrap.checkpoints.audit.counters import hints_of
from nantrap.checkpoints.audit.verdict import CheckpointAudit
from nantrap.cli import main


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
    assert f"hint: {hint}\n" in capsys.readouterr().err
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
