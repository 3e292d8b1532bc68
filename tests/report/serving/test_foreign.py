"""Logs of other tools on the live page: found, judged, drawn and followed like runs, and never mistaken for data."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from nantrap.report.serving.foreign import ForeignLog
from nantrap.report.serving.index import Index
from nantrap.report.states import RecentSteps, state_of
from report.runs import usual_run

pytest.importorskip("starlette", reason="needs nantrap[serve]")
from starlette.testclient import TestClient

from nantrap.report.serving.app import LiveServer


def text_log(path: Path, steps: int = 300) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"step {i} | loss {3 - i / 1000:.4f} | lr 1.00e-04\n" for i in range(steps)))
    return path


def indexed(root: Path) -> Index:
    index = Index(root)
    index.discover()
    return index


def named(index: Index) -> dict[str, Any]:
    return {summary.name: summary for summary in index.summaries()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    usual_run(tmp_path / "exp1")
    text_log(tmp_path / "gpt" / "train.log")
    (tmp_path / "gpt" / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, "train/loss": math.nan if i > 90 else 2.0}) + "\n" for i in range(100))
    )
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "metrics.csv").write_text("step,train_loss\n" + "".join(f"{i},{2 + i}\n" for i in range(50)))
    for number in (50, 100):
        folder = tmp_path / "hf" / f"checkpoint-{number}"
        folder.mkdir(parents=True)
        history = [{"step": i, "loss": 2.0, "learning_rate": 1e-4} for i in range(0, number, 10)]
        (folder / "trainer_state.json").write_text(json.dumps({"max_steps": 200, "log_history": history}))
    (tmp_path / "requirements.txt").write_text("torch\nnumpy\n")
    (tmp_path / "train.jsonl").write_text('{"text": "hello", "id": 1}\n' * 20)
    return tmp_path


def test_logs_are_found_and_files_without_a_loss_are_not_runs(root: Path) -> None:
    found = named(indexed(root))
    assert sorted(found) == [
        "csv/metrics.csv", "exp1", "gpt/metrics.jsonl", "gpt/train.log", "hf/checkpoint-100/trainer_state.json",
    ]  # fmt: skip
    kinds = {name: summary.kind for name, summary in found.items()}
    assert kinds["exp1"] == "run"
    assert kinds["gpt/train.log"] == "text"
    assert kinds["hf/checkpoint-100/trainer_state.json"] == "json"
    assert found["gpt/train.log"].step == 299
    assert found["gpt/train.log"].loss == pytest.approx(2.701)
    assert found["hf/checkpoint-100/trainer_state.json"].judged.total == 200


def test_event_files_are_one_run_for_each_folder(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="needs tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path / "tb"))
    for step in range(30):
        writer.add_scalar("train/loss", 3 - step / 100, step)
        writer.add_scalar("lr", 1e-3, step)
    writer.close()
    index = indexed(tmp_path)
    (summary,) = index.summaries()
    assert (summary.name, summary.kind, summary.step) == ("tb", "tensorboard", 29)
    rows = index.rows(summary.ident)
    assert [row.step for row in rows] == list(range(30))  # a line for each value becomes a row for each step
    assert set(rows[-1].numbers) == {"loss", "lr"}


def test_a_loss_that_is_nan_is_seen_at_a_glance(root: Path) -> None:
    state = named(indexed(root))["gpt/metrics.jsonl"].state
    assert (state.word, state.reason) == ("sick", "dead since step 91: no finite loss in the last 9 values")


@pytest.mark.parametrize(
    ("age", "milliseconds", "word", "reason"),
    [
        (30.0, 0.0, "healthy", "all 50 losses finite"),
        (7200.0, 0.0, "stalled", "no new line for 2 h"),
        (300.0, 5000.0, "stalled", "no new line for 5 min"),
        (86400.0 * 3, 0.0, "unknown", "no new line for 3 days; a log does not say whether its run has ended"),
    ],
)
def test_a_log_that_is_quiet(age: float, milliseconds: float, word: str, reason: str) -> None:
    verdict = ("healthy", "all 50 losses finite")
    state = state_of(RecentSteps([2.0] * 50, ["apply"] * 50, milliseconds=milliseconds, age=age, verdict=verdict))
    assert (state.word, state.reason) == (word, reason)


def test_a_log_that_grows_is_followed(tmp_path: Path) -> None:
    log = text_log(tmp_path / "train.log", 20)
    index = indexed(tmp_path)
    (summary,) = index.summaries()
    rows, new = index.follow(summary.ident)
    assert rows[-1].step == 19
    assert new() == []
    with log.open("a") as file:
        file.write("step 20 | loss nan | lr 1.00e-04\n")
    (row,) = new()
    assert row.step == 20
    assert math.isnan(row.numbers["loss"])
    assert [r.step for r in index.window(summary.ident, 18, 20)] == [18, 19, 20]
    os.utime(log, (time.time(), time.time() + 1))
    assert named(index)["train.log"].state.word == "sick"


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = ForeignLog(text_log(tmp_path / "train.log", 4000), last_bytes=4096)
    steps = [row.step for row in log.rows()]
    assert steps[-1] == 3999
    assert 50 < len(steps) < 200
    table = tmp_path / "metrics.csv"
    table.write_text("step,train_loss\n" + "".join(f"{i},{2 + i}\n" for i in range(4000)))
    row = ForeignLog(table, last_bytes=4096).rows()[-1]
    assert (row.step, row.numbers["loss"]) == (3999, 4001.0)


def test_whole_curves_keep_the_spike(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": i, "loss": 99.0 if i == 777 else 1.0}) + "\n" for i in range(9000)))
    curves = ForeignLog(path).curves(0, 8999, points=100)
    assert len(curves["columns"]["loss"]) == 100
    assert max(column[3] for column in curves["columns"]["loss"]) == 99.0


def test_the_pages_of_a_log(root: Path) -> None:
    hostile = '<img src=x onerror="alert(1)">'
    with (root / "gpt" / "train.log").open("a") as file:
        file.write(f"RuntimeError: loss is nan {hostile}\n")
    index = indexed(root)
    client = TestClient(cast(Any, LiveServer(index).application(hosts=("testserver",))))
    runs = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    page = client.get("/")
    assert "not guarded" in page.text
    assert "text log" in page.text
    ident = runs["gpt/train.log"]["id"]
    text = client.get(f"/run/{ident}").text
    assert "Lines that mention NaN or an error" in text
    assert "RuntimeError: loss is nan" in text
    assert hostile not in text
    assert "written by another tool" in text
    series = client.get(f"/api/run/{ident}/series", params={"first": 0, "last": 299}).json()
    assert len(series["columns"]["loss"]) == 300
    assert client.get(f"/run/{ident}/report").status_code == 200
    assert client.get(f"/run/{ident}/incident/x").status_code == 404
    metrics = client.get("/metrics").text
    assert 'nantrap_loss{run="gpt/train.log"}' in metrics
    assert 'nantrap_skipped{run="gpt/train.log"}' not in metrics


def test_a_link_to_a_log_elsewhere_is_not_followed(tmp_path: Path) -> None:
    text_log(tmp_path / "elsewhere" / "train.log")
    inside = tmp_path / "runs"
    inside.mkdir()
    (inside / "train.log").symlink_to(tmp_path / "elsewhere" / "train.log")
    (inside / "more").symlink_to(tmp_path / "elsewhere")
    assert indexed(inside).summaries() == []
