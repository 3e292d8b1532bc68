"""The journal: one line a step, readable while the run lives, never in the way of the training."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nantrap
from journals import steps_in
from nantrap import Policy
from nantrap.record import Journal, open_run, write_run_info

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=10)
numbers = st.floats()
lines = st.fixed_dictionaries(
    {
        "step": st.integers(0, 10**9),
        "loss": numbers,
        "grad_norm": numbers,
        "lr": st.lists(numbers, max_size=3),
        "action": st.sampled_from(["apply", "skip", "rollback", "stop"]),
        "ms": st.floats(0, 1e6),
    },
    optional={
        "terms": st.dictionaries(names, numbers, max_size=3),
        "watch": st.dictionaries(names, numbers, max_size=3),
        "scale": numbers,
    },
)


def same(left: float | None, right: float | None) -> bool:
    return left == right or (left is not None and right is not None and math.isnan(left) and math.isnan(right))


@given(st.lists(lines, max_size=6))
def test_round_trip(written: list[dict[str, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(folder)
        for line in written:
            journal.append(line)
        journal.close()
        read = steps_in(folder)
    assert len(read) == len(written)
    for line, back in zip(written, read, strict=True):
        assert (back["step"], back["action"], back["ms"]) == (line["step"], line["action"], line["ms"])
        assert all(same(back.get(name), line.get(name)) for name in ("loss", "grad_norm", "scale"))
        assert all(same(a, b) for a, b in zip(back["lr"], line["lr"], strict=True))
        for kept, given_ in ((back.get(name, {}), line.get(name, {})) for name in ("terms", "watch")):
            assert kept.keys() == given_.keys()
            assert all(same(kept[name], given_[name]) for name in kept)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.alpha = nn.Parameter(torch.tensor(0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.alpha


def guarded(folder: Path, **options: Any) -> tuple[Model, nantrap.Guard]:
    torch.manual_seed(0)
    model = Model()
    groups = [{"params": model.body.parameters(), "lr": 0.1}, {"params": [model.alpha], "lr": 0.01}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    return model, nantrap.Guard(model, optimizer, run_dir=folder, quiet=True, **options)


def loss_of(model: Model, x: torch.Tensor) -> dict[str, torch.Tensor]:
    output = model(x)
    return {"fit": (output - 1).square().mean(), "size": output.abs().mean()}


def test_a_line_has_everything(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model, guard = guarded(tmp_path, watch=("alpha",), scaler=scaler, policy=Policy(diagnose="off"))
    with guard:
        first = guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3))
        second = guard.attempt(lambda x: loss_of(model, x), torch.full((4, 3), math.nan))
    lines = steps_in(tmp_path)
    assert [line["step"] for line in lines] == [0, 1]
    assert [line["action"] for line in lines] == ["apply", "skip"]
    assert (lines[0]["loss"], lines[0]["grad_norm"]) == (first.loss, first.grad_norm)
    assert (lines[0]["lr"], lines[0]["scale"]) == ([0.1, 0.01], 8.0)
    assert lines[0]["terms"] == dict(first.terms)
    assert set(lines[0]["terms"]) == {"fit", "size"}
    assert lines[0]["watch"] == {"alpha": 0.25}
    assert lines[0]["ms"] > 0
    assert math.isnan(lines[1]["loss"])
    assert second.incident is not None
    assert lines[1]["incident"]["phase"] == second.incident.phase
    for text in (tmp_path / "journal-r0.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_readable_while_the_run_lives(tmp_path: Path) -> None:
    model, guard = guarded(tmp_path, policy=Policy(diagnose="off"))
    for _ in range(3):
        guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3))
    assert steps_in(tmp_path) == []  # not yet due: a healthy run writes every few seconds
    guard.attempt(lambda x: loss_of(model, x), torch.full((4, 3), math.nan))
    assert [line["step"] for line in steps_in(tmp_path)] == [0, 1, 2, 3]  # an incident is written immediately
    guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3))
    guard.close()
    assert len(steps_in(tmp_path)) == 5


def test_written_every_few_seconds_and_every_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("nantrap.record.journal.time.perf_counter", lambda: now[0])
    journal = Journal(tmp_path)
    journal.append({"step": 0})
    assert journal.path.read_text() == ""
    now[0] += 3.0
    journal.append({"step": 1})
    assert journal.path.read_text().count("\n") == 2
    for step in range(512):
        journal.append({"step": step})
    assert journal.path.read_text().count("\n") == 514


def test_the_lines_of_steps_are_written_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("nantrap.record.journal.time.perf_counter", lambda: now[0])
    model, guard = guarded(tmp_path)
    written = []
    for seconds in (0.0, 0.5, 3.0, 0.5):
        now[0] += seconds
        guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3))
        written.append(len(steps_in(tmp_path)))
    guard.close()
    assert written == [0, 0, 3, 3]


def test_written_when_it_is_never_closed(tmp_path: Path) -> None:
    code = f"from nantrap.record import Journal; j = Journal({str(tmp_path)!r}); j.append({{'step': 7}})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert [line["step"] for line in steps_in(tmp_path)] == [7]


@given(st.integers(0, 200))
def test_a_torn_line_anywhere_loses_that_line_only(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(folder)
        for step in range(4):
            journal.append({"step": step, "loss": 0.5, "grad_norm": 1.0, "lr": [0.1], "action": "apply", "ms": 1.0})
        journal.close()
        whole = journal.path.read_bytes()
        journal.path.write_bytes(whole[: min(cut, len(whole))])
        complete = whole[: min(cut, len(whole))].count(b"}")
        assert [line["step"] for line in steps_in(folder)] == list(range(complete))
        resumed = Journal(folder)
        resumed.append({"step": 99})
        resumed.close()
        assert [line["step"] for line in steps_in(folder)] == [*range(complete), 99]


def test_resuming_appends(tmp_path: Path) -> None:
    for _ in range(2):
        model, guard = guarded(tmp_path)
        with guard:
            guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3))
    assert [line["step"] for line in steps_in(tmp_path)] == [0, 0]
    document = json.loads((tmp_path / "run.json").read_text())
    assert len(document["resumed"]) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_stops_the_journal_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "journal-r0.jsonl").symlink_to("/dev/full")
    model, guard = guarded(tmp_path, policy=Policy(diagnose="off"))
    guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3))
    with pytest.warns(RuntimeWarning) as caught:
        guard.attempt(lambda x: loss_of(model, x), torch.full((4, 3), math.nan))
    assert [str(warning.message) for warning in caught] == [
        f"nantrap: the journal {tmp_path}/journal-r0.jsonl stops here: No space left on device. Training continues"
    ]
    assert guard.attempt(lambda x: loss_of(model, x), torch.ones(4, 3)).applied
    guard.attempt(lambda x: loss_of(model, x), torch.full((4, 3), math.nan))  # warned once
    guard.close()


def test_a_disk_that_fills_in_the_middle_of_a_line(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    journal = Journal(tmp_path)
    journal.append({"step": 0, "loss": 1.0})
    journal.flush()
    size = journal.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, hard))
    try:
        journal.append({"step": 1, "loss": 1.0})
        with pytest.warns(RuntimeWarning, match="stops here: File too large. Training continues"):
            journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append({"step": 2})
    journal.close()
    assert [line["step"] for line in steps_in(tmp_path)] == [0]


def test_run_json_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-value")
    _, guard = guarded(tmp_path)
    guard.close()
    text = (tmp_path / "run.json").read_text()
    assert "very-secret-value" not in text
    assert not any(value in text for name, value in os.environ.items() if len(value) > 12 and "PYTEST" not in name)
    document = json.loads(text)
    assert set(document) == {
        "schema", "started", "arguments", "python", "nantrap", "torch", "pid", "model", "parameters", "optimizer",
        "precision", "devices", "world_size", "max_grad_norm", "loss_scaler", "policy", "read",
    }  # fmt: skip
    assert (document["model"], document["optimizer"], document["parameters"]) == ("Model", "SGD", 9)


def test_a_broken_run_json_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{ half")
    assert json.loads(write_run_info(tmp_path, {"model": "M"}).read_text())["model"] == "M"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_run_json_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.warns(RuntimeWarning, match=r"run.json cannot be written: .*Training continues"):
        guarded(tmp_path)


def test_journals_by_rank(tmp_path: Path) -> None:
    for rank in (0, 1, 10):
        journal = Journal(tmp_path, rank=rank)
        journal.append({"step": rank})
        journal.close()
    assert {rank: series.step.tolist() for rank, series in open_run(tmp_path).series.items()} == {
        0: [0],
        1: [1],
        10: [10],
    }
    assert open_run(tmp_path / "journal-r1.jsonl").ranks == (1,)


@pytest.mark.parametrize("form", ["attempt", "two lines"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_run_json_names_the_precision_of_autocast(tmp_path: Path, form: str, dtype: torch.dtype | None) -> None:
    """The weights are float32 in both, and what is computed with them is not."""
    model = torch.nn.Linear(4, 1)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, quiet=True)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            return model(x).float().square().mean()  # type: ignore[no-any-return]

    for _ in range(2):
        if form == "attempt":
            guard.attempt(loss_of, torch.ones(3, 4))
        else:
            guard.backward(loss_of(torch.ones(3, 4)))
            guard.step()
    guard.close()
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["precision"] == ["float32"]
    assert document.get("autocast") == (None if dtype is None else "bfloat16")
    assert ("<dt>autocast</dt><dd>bfloat16" in (tmp_path / "report.html").read_text()) == (dtype is not None)
