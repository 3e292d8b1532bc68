"""A run or a log as columns: every kind of log, while it grows, used again, damaged."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nantrap import FormatError, Incident, record
from nantrap.errors import UsageError
from nantrap.record import Journal, open_run, write_bundle, write_run_info

TINY = {"lr": [1e-3], "action": "apply", "ms": 1.0}


def journal(folder: Path, steps: range, *, rank: int = 0) -> None:
    book = Journal(folder, rank=rank)
    for step in steps:
        book.append({"step": step, "loss": 1.0 / (step + 1), "grad_norm": 0.5, **TINY})
    book.close()


def lines(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_run_folder_with_ranks_incidents_and_evaluations(tmp_path: Path) -> None:
    write_run_info(tmp_path, {"world_size": 2})
    for rank in (0, 1):
        journal(tmp_path, range(3), rank=rank)
    book = Journal(tmp_path)
    incident = {"phase": "forward", "module": "attn", "op": "aten._softmax", "cause": "softmax_fully_masked_row"}
    book.append({"step": 3, "loss": float("nan"), "grad_norm": float("inf"), "lr": [1e-3, 2e-3],
                 "action": "skip", "ms": 2.0, "terms": {"ce": float("nan")}, "watch": {"a.alpha": 0.01},
                 "incident": incident})  # fmt: skip
    book.append({"kind": "eval", "step": 3, "metrics": {"accuracy": 0.5}})
    book.append({"kind": "something new", "step": 3})
    book.append({"step": 4, "event": "incident_begins", "phase": "forward", "loss": float("nan")})
    book.append({"step": 4, "event": "eval", "metrics": {"accuracy": 0.75}, "epoch": 1})
    book.close()
    write_bundle(tmp_path, Incident(step=3, rank=0, phase="forward", module="attn", op="aten._softmax"), text="x")

    run = open_run(tmp_path)
    assert (run.kind, run.ranks, run.info["world_size"], len(run.main)) == ("nantrap", (0, 1), 2, 4)
    assert run.main.names == ("loss", "grad_norm", "lr", "lr.1", "ms", "terms.ce", "watch.a.alpha")
    loss = run.main["loss"].value
    assert loss[0] == 1.0
    assert math.isnan(loss[3])
    assert run.main["grad_norm"].value[3] == math.inf
    assert (run.main["lr.1"].step.tolist(), run.main["lr.1"].row.tolist()) == ([3], [3])
    assert run.main.applied.tolist() == [True, True, True, False]
    assert record.ACTIONS[run.main.action[3]] == "skip"
    (event,) = run.main.events()
    assert (event.step, event.action, event.cause, event.module) == (3, "skip", "softmax_fully_masked_row", "attn")
    assert run.evaluations["accuracy"].value.tolist() == [0.5, 0.75]
    assert [(mark.event, mark.step) for mark in run.marks] == [("something new", 3), ("incident_begins", 4)]
    assert run.evaluations["accuracy"].step.tolist() == [3, 4]
    assert [(mark.event, mark.step) for mark in run.marks] == [("something new", 3), ("incident_begins", 4)]
    assert [folder.incident.step for folder in run.incidents if folder.incident] == [3]
    assert run.problems == ()
    assert run.modified > 0


def test_the_template_and_the_decoder_agree(tmp_path: Path) -> None:
    records: list[dict[str, object]] = []
    for step in range(3000):
        line: dict[str, object] = {
            "step": step,
            "loss": step * 1.7e-5,
            "lr": [1e-4, 2e-4],
            "action": "apply",
            "n": {"l1": -step},
        }
        if step % 700 == 13:
            line |= {"action": "skip", "loss": "nan", "incident": {"phase": "backward"}}
        if step == 900:
            line["loss"] = "-inf"  # the same shape, a number that is none
        records.append(line)
    path = lines(tmp_path / "journal-r0.jsonl", records)
    series = open_run(path).main
    assert len(series) == 3000
    assert series.step.tolist() == list(range(3000))
    expected = [float(str(line["loss"])) for line in records]
    np.testing.assert_array_equal(series["loss"].value, expected)
    np.testing.assert_array_equal(series["n.l1"].value, -np.arange(3000.0))
    assert [event.step for event in series.events()] == [13, 713, 1413, 2113, 2813]
    only = open_run(path, columns=["loss"]).main
    assert only.names == ("loss",)
    assert not only.applied.all()
    np.testing.assert_array_equal(only["loss"].value, expected)


def test_only_what_was_appended_is_read_and_half_a_line_waits(tmp_path: Path) -> None:
    journal(tmp_path, range(2))
    run = open_run(tmp_path)
    first = run.main["loss"].value
    assert not run.refresh()
    path = tmp_path / "journal-r0.jsonl"
    with path.open("a") as file:
        file.write('{"step":2,"loss":0.25,"action":"apply"}\n{"step":3,"lo')
        file.flush()
        assert run.refresh()
        assert run.main.step.tolist() == [0, 1, 2]
        file.write('ss":0.2,"action":"apply"}\n')
    assert run.refresh()
    assert run.main["loss"].value.tolist() == [1.0, 0.5, 0.25, 0.2]
    assert first.tolist() == [1.0, 0.5]  # an array that was returned does not change
    journal(tmp_path, range(1), rank=1)
    assert run.refresh()
    assert run.ranks == (0, 1)


def test_a_file_rewritten_is_read_again(tmp_path: Path) -> None:
    path = lines(tmp_path / "log.jsonl", [{"loss": 1.0}, {"loss": 2.0}])
    run = open_run(path)
    lines(path, [{"loss": 3.0}])
    assert run.refresh()
    assert run.main["loss"].value.tolist() == [3.0]


def test_a_torn_line_in_the_middle_is_skipped_and_named(tmp_path: Path) -> None:
    path = tmp_path / "journal-r0.jsonl"
    good = [json.dumps({"step": step, "loss": 1.0}) for step in range(200)]
    path.write_text("\n".join([*good[:150], '{"step": 150, "lo', "[1]", *good[150:]]) + "\n")
    run = open_run(path)
    assert run.main.step.tolist() == list(range(200))
    assert run.problems == (
        "journal-r0.jsonl, line 151: not a JSON object, skipped",
        "journal-r0.jsonl, line 152: not a JSON object, skipped",
    )


def test_a_run_directory_used_again(tmp_path: Path) -> None:
    journal(tmp_path, range(6))
    journal(tmp_path, range(3, 8))
    series = open_run(tmp_path).main
    assert [(s.start, s.stop, s.first_step, s.last_step) for s in series.segments] == [(0, 6, 0, 5), (6, 11, 3, 7)]
    assert series.step[series.current].tolist() == list(range(8))


def test_json_lines_of_other_tools(tmp_path: Path) -> None:
    path = lines(tmp_path / "training_log.jsonl", [{"loss": 2.0, "t": "a"}, {"loss": None}, {"loss": float("nan")}])
    run = open_run(path)
    assert (run.kind, run.main.step.tolist()) == ("jsonl", [0, 1, 2])  # no step is named: lines are counted
    assert run.main["loss"].value[0] == 2.0
    assert np.isnan(run.main["loss"].value[1:]).all()
    path = lines(
        tmp_path / "more.jsonl", [{"global_step": 5, "train/loss": 1.0}, {"global_step": 9, "val/loss": "inf"}]
    )
    run = open_run(path)
    assert run.main["loss"].step.tolist() == [5]
    assert run.evaluations["val/loss"].value.tolist() == [math.inf]
    odd: list[dict[str, object]] = [
        {"loss": 10**400},
        {"loss": "1.5"},
        {"loss": True},
        {"loss": [3.0]},
        {"loss": "n/a"},
        {"x": 1},
    ]
    assert open_run(lines(tmp_path / "odd.jsonl", odd)).main["loss"].value.tolist() == [math.inf, 1.5, 1.0, 3.0]


def test_trainer_state(tmp_path: Path) -> None:
    state = {"max_steps": 40, "num_train_epochs": 2, "log_history": [
        {"epoch": 0.5, "loss": 1.5, "learning_rate": 5e-5, "grad_norm": 2.0, "step": 10},
        {"epoch": 1.0, "eval_loss": 1.1, "step": 20},
    ]}  # fmt: skip
    for step in (9, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))
    run = open_run(tmp_path)
    assert run.path.parent.name == "checkpoint-20"
    assert run.kind == "json"
    assert (run.total_steps, run.total_epochs) == (40, 2)
    assert run.main["lr"].value.tolist() == [5e-5]
    assert list(run.evaluations) == ["eval_loss"]
    state["log_history"].append({"loss": float("nan"), "step": 30})  # type: ignore[attr-defined]
    run.path.write_text(json.dumps(state))
    assert run.refresh()
    assert run.main["loss"].step.tolist() == [10, 30]


def test_a_table(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss,val_loss\n0,9,1.5,\n0,9,,1.25\n1,19,nan,\n")
    run = open_run(tmp_path)
    assert (run.path, run.kind) == (path, "csv")
    assert run.main["loss"].step.tolist() == [9, 19]
    assert run.evaluations["val_loss"].value.tolist() == [1.25]
    path.write_text("epoch,step,train_loss,val_loss,new\n0,9,1.5,,1\n")  # Lightning rewrites it for a new column
    assert run.refresh()
    assert run.main["new"].value.tolist() == [1.0]
    assert len(run.main) == 1


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    writing = pytest.importorskip("torch.utils.tensorboard")
    with writing.SummaryWriter(tmp_path / "tb") as writer:
        for step in range(5):
            writer.add_scalar("train/loss", float("nan") if step == 3 else 1.0 / (step + 1), step)
            writer.add_scalar("Loss/val", 0.5, step, new_style=True)
        writer.add_text("about", "words", 0)
        writer.add_histogram("weights", np.arange(10.0), 0)
    run = open_run(tmp_path)
    assert (run.kind, run.main["loss"].step.tolist()) == ("tensorboard", [0, 1, 2, 3, 4])
    assert np.isnan(run.main["loss"].value[3])
    assert run.main["loss"].value[4] == np.float32(0.2)
    assert run.evaluations["Loss/val"].value.tolist() == [0.5] * 5
    (file,) = (tmp_path / "tb").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:-3])  # the last record is being written
    open_run(file)
    file.write_bytes(data[:200] + b"\1\2\3\4" + data[204:])
    with pytest.raises(FormatError, match=r"byte [\d,]+: not a TensorBoard record"):
        open_run(file)


def test_a_progress_bar_over_epochs(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    bars = [
        f"\rEp {epoch}/80: {n * 50}%|███| {n}/2 [00:01<00:01, 2.3it/s, loss={'nan' if epoch == 3 else epoch}, lr=1e-04]"
        for epoch in (1, 2, 3)
        for n in (1, 2)
    ]
    path.write_text("".join(bars) + "\n🔴 NaN/Inf detected in MODEL PREDICTIONS\n")
    run = open_run(path)
    assert run.main.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.main["epoch"].value.tolist() == [1, 1, 2, 2, 3, 3]
    assert (run.total_steps, run.total_epochs) == (160, 80)
    assert [(note.step, note.text) for note in run.notes] == [(6, "🔴 NaN/Inf detected in MODEL PREDICTIONS")]


def test_another_bar_in_between_does_not_begin_the_run_again(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = []
    for step in range(2, 50, 2):
        lines.append(
            f"\r {step}%|█ | {step}/48 [00:00<00:00, 73.91it/s]\r    \r"
            f"{{'loss': '{50 - step}', 'epoch': '{step / 16}'}}\n"
        )
        if step % 16 == 0:
            lines.append(
                f"\r 50%|█ | 1/2 [00:00<00:00, 9it/s]\r{{'eval_loss': '{50 - step}', 'eval_runtime': '0.1'}}\n"
            )
    path.write_text("".join(lines))
    run = open_run(path)
    assert run.main["loss"].step.tolist() == list(range(2, 50, 2))
    assert len(run.main.segments) == 1
    assert list(run.evaluations) == ["eval_loss"]
    assert run.evaluations["eval_loss"].step.tolist() == [16, 32, 48]


def test_a_step_out_of_order_is_no_new_start(tmp_path: Path) -> None:
    steps = [0, 1, 2, 3, 1, 4, 5, 6]
    run = open_run(lines(tmp_path / "log.jsonl", [{"step": step, "loss": 1.0} for step in steps]))
    assert len(run.main.segments) == 1
    assert run.main.current.sum() == 8
    steps = [0, 1, 2, 3, 0, 1, 2]
    run = open_run(lines(tmp_path / "again.jsonl", [{"step": step, "loss": 1.0} for step in steps]))
    assert [(s.start, s.stop) for s in run.main.segments] == [(0, 4), (4, 7)]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        open_run(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"no run and no log in this folder \(looked for journal-r0.jsonl"):
        open_run(tmp_path)
    (tmp_path / "weights.log").write_bytes(b"PK\3\4\0\0\0")
    with pytest.raises(FormatError, match="a binary file, not a log"):
        open_run(tmp_path / "weights.log")
    (tmp_path / "other.log").write_text("")
    assert len(open_run(tmp_path / "other.log").main) == 0  # a log that is about to begin
    with pytest.raises(UsageError, match=r"several logs in this folder: other.log, weights.log; give one of them"):
        open_run(tmp_path)
    (tmp_path / "steps.jsonl").write_text('{"step": 0, "loss": 1.0, "applied": true}\n')
    assert open_run(tmp_path).path == tmp_path / "steps.jsonl"  # the logs for people lie beside it
    (tmp_path / "config.json").write_text('{\n"a": 1}')
    with pytest.raises(FormatError, match="no log in this JSON file"):
        open_run(tmp_path / "config.json")
    folder = tmp_path / "run" / "incidents" / "000001-r0"
    folder.mkdir(parents=True)
    journal(tmp_path / "run", range(1))
    (folder / "incident.json").write_text("{")
    (problem,) = open_run(tmp_path / "run").problems
    assert problem.startswith("000001-r0: incident.json cannot be read")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "text",
    [
        "9" * 400 + "/2 [00:01, loss=1]\n" + "Epoch " + "9" * 400 + " loss: 2\n",
        "epoch 3/0 0/0 [ loss=1\n",
        "step " + "1," * 50 + " loss 2\n",
        '{"step": 1e308, "loss": 1e400}\n{"step": -1e308, "loss": -1e308}\n{"step": null, "loss": []}\n' * 3,
        "{" * 100_000 + "\n",
    ],
)
def test_absurd_numbers_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    run = open_run(path)
    assert len(run.main.step) == len(run.main)


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    journal(tmp_path, range(2))
    code = (
        "import sys; from nantrap import record; "
        f"print(len(record.open_run({str(tmp_path)!r}).main), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["2", "False"]


def test_very_many_names_are_counted_and_not_read(tmp_path: Path) -> None:
    """Each name costs a look at every record. What a verdict is made of is read all the same."""
    with (tmp_path / "journal-r0.jsonl").open("w") as file:
        for step in range(2000):
            terms = {f"t{step}_{number}": 1.0 for number in range(20)}
            file.write(json.dumps({"terms": terms, "step": step, "loss": 2.0 - step / 2000, "action": "apply"}) + "\n")
    run = open_run(tmp_path)
    assert run.names_not_read >= 36_000
    assert len(run.main["loss"]) == 2000
    assert len(run.main.names) <= 2010


def test_a_line_that_is_too_long_for_a_log_is_not_read(tmp_path: Path) -> None:
    """Its names alone would take half a gigabyte: one line of JSON with a million of them."""
    (tmp_path / "keys.jsonl").write_text("{" + ",".join(f'"k{n}": {n}' for n in range(1_100_000)) + "}\n")
    with pytest.raises(FormatError, match="a line of more than 16 MB; this is not a log of lines"):
        open_run(tmp_path / "keys.jsonl")
