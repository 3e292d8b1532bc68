"""Names of a model, its loss terms, its data and its folders can hold anything: no line is forged, no cursor moved."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import nantrap
from nantrap.checkpoints import CheckpointStore
from nantrap.cli import main

EVIL = "x\x1b[2J\rok \u202e\nok  all healthy"


def is_clean(text: str) -> bool:
    """No control character but line ends, and no line that the name began."""
    return all(char == "\n" or char.isprintable() for char in text) and not any(
        line.startswith("ok  all") for line in text.split("\n")
    )


def hostile_model() -> nn.Module:
    model = nn.Sequential()
    model.add_module(EVIL, nn.Linear(2, 1))
    return model


def test_the_check_can_fail() -> None:
    assert not is_clean(EVIL)
    assert is_clean("step 1 skipped\nhelp: é …")


def test_a_guarded_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = hostile_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run_dir = tmp_path / EVIL.replace("/", "")
    policy = nantrap.Policy(max_consecutive_skips=1, max_rollbacks=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        guard = nantrap.Guard(model, optimizer, policy=policy, run_dir=run_dir)
        stopped = ""
        for step in range(3):
            batch = {EVIL: torch.full((4, 2), torch.nan if step else 1.0)}
            try:
                guard.attempt(lambda given: {EVIL: model(given[EVIL]).square().mean()}, batch)
                guard.log_eval(step, {EVIL: float("nan")})
            except nantrap.NonFiniteError as error:
                stopped = str(error)
                break
        guard.close()
    assert stopped.startswith("step 2 stopped: data: [NT101]")
    assert is_clean(stopped)
    shown = capsys.readouterr()
    assert "skipped" in shown.err or "stopped" in shown.err
    assert is_clean(shown.err)
    assert is_clean(shown.out)
    assert all(is_clean(str(warning.message)) for warning in caught)
    formats = [["report", str(run_dir), "--format", kind, "-o", "-"] for kind in ("md", "github", "junit", "json")]
    for command in (*formats, ["check", str(run_dir)]):
        main(command)
        shown = capsys.readouterr()
        assert is_clean(shown.err + shown.out), command


def test_a_store(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / EVIL)
    with pytest.raises(nantrap.NonFiniteError) as raised:
        store.save(step=1, model={EVIL: torch.tensor([torch.nan])})
    assert is_clean(str(raised.value))
    store.save(step=1, model={"w": torch.ones(1)})
    (tmp_path / EVIL / "manifest.json").write_text("[]")
    with pytest.warns(RuntimeWarning, match="cannot be read") as caught:
        store.load(model=nn.ParameterDict({"w": nn.Parameter(torch.ones(1))}))
    assert all(is_clean(str(warning.message)) for warning in caught)
