"""Exporters: what arrives in the real tools, offline, and that a failing one does no harm."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from nantrap import Incident, record
from nantrap.errors import MissingExtraError, UsageError
from nantrap.record.exporters import Exporters, flat_values, open_exporters

LINE = {"step": 3, "loss": 2.5, "grad_norm": math.inf, "lr": (1e-3, 2e-3), "action": "skip", "by": "guard", "ms": 4.0,
        "terms": {"ce": 2.0}, "watch": {"a.alpha": 0.1}, "incident": {"phase": "forward"}}  # fmt: skip
INCIDENT = Incident(step=3, rank=0, phase="forward", module="attn", op="aten._softmax")
EVALUATION = {"step": 3, "event": "eval", "metrics": {"accuracy": 0.75}}


class Kept:
    """Keeps what it gets."""

    name = "kept"

    def __init__(self) -> None:
        self.got: list[object] = []

    def values(self, step: int, values: Mapping[str, float]) -> None:
        self.got.append((step, dict(values)))

    def incident(self, incident: Incident, text: str) -> None:
        self.got.append((incident.step, text))

    def close(self) -> None:
        self.got.append("closed")


class Broken(Kept):
    """Fails whenever it is called."""

    name = "broken"

    def values(self, step: int, values: Mapping[str, float]) -> None:
        super().values(step, values)
        raise ConnectionError("no route")


def feed(exporters: Exporters) -> None:
    exporters.append(LINE)
    exporters.append({**LINE, "step": 4, "loss": math.nan, "action": "apply"})
    exporters.append(EVALUATION)
    exporters.append({"step": 4, "event": "incident_begins"})
    exporters.incident(INCIDENT, text="error[NT203]: <b>words</b>\n  and more")
    exporters.close()


def test_the_values_of_a_line() -> None:
    assert dict(flat_values(LINE)) == {
        "applied": 0.0, "loss": 2.5, "grad_norm": math.inf, "lr": 1e-3, "lr.1": 2e-3, "ms": 4.0, "terms/ce": 2.0,
        "watch/a.alpha": 0.1,
    }  # fmt: skip
    assert dict(flat_values(EVALUATION)) == {"eval/accuracy": 0.75}
    assert dict(flat_values({"step": 4, "event": "incident_begins", "loss": 1.0})) == {}


def test_everything_arrives_in_order_and_another_one_that_fails_is_given_up() -> None:
    kept, broken = Kept(), Broken()
    exporters = open_exporters([broken, kept], run_dir=None, facts={})
    with pytest.warns(
        RuntimeWarning, match="export to broken: switched off after ConnectionError: no route. Training continues"
    ):
        feed(exporters)
    assert len(broken.got) == 3
    assert [item if isinstance(item, str) else item[0] for item in kept.got] == [3, 4, 3, 3, "closed"]  # type: ignore[index]
    exporters.append(LINE)  # after the end: nothing
    exporters.close()
    assert kept.got[-1] == "closed"


def test_a_slow_exporter_does_not_hold_the_loop_up() -> None:
    gate = threading.Event()

    class Slow(Kept):
        def values(self, step: int, values: Mapping[str, float]) -> None:
            gate.wait(30)
            super().values(step, values)

    slow = Slow()
    exporters = open_exporters([slow], run_dir=None, facts={})
    for _ in range(30_000):
        exporters.append(LINE)
    gate.set()
    with pytest.warns(RuntimeWarning, match=r"too slow: the values of [\d,]+ steps were left out"):
        exporters.close()
    assert slow.got[-1] == "closed"


def test_tensorboard_as_our_reader_and_the_real_one_see_it(tmp_path: Path) -> None:
    feed(open_exporters(["tensorboard"], run_dir=tmp_path, facts={}))
    run = record.open_run(tmp_path / "tensorboard")
    assert run.main["loss"].step.tolist() == [3, 4]
    assert run.main["loss"].value[0] == 2.5
    assert run.evaluations["eval/accuracy"].value.tolist() == [0.75]
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [3, 4]
    assert math.isnan(events.Scalars("loss")[1].value)
    assert math.isinf(events.Scalars("grad_norm")[0].value)
    (text,) = events.Tensors("incidents/text_summary")
    assert text.tensor_proto.string_val[0].startswith(b"    error[NT203]")


def test_wrong_names_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="export='tensorbord': choose from tensorboard, wandb, mlflow, trackio"):
        open_exporters(["tensorbord"], run_dir=None, facts={})
    with pytest.raises(UsageError, match=r"expected one of tensorboard, .* or an object with"):
        open_exporters([3], run_dir=None, facts={})  # type: ignore[list-item]
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=rf"pip install 'nantrap\[{name}\]'"):
            open_exporters([name], run_dir=None, facts={})


def test_an_exporter_that_cannot_start_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    with pytest.warns(RuntimeWarning, match="export to tensorboard did not start: FileExistsError"):
        feed(open_exporters(["tensorboard"], run_dir=tmp_path, facts={}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    feed(open_exporters(["wandb"], run_dir=tmp_path / "run", facts={"model": "Net"}))
    wandb.teardown()  # waits for its service process, which writes the file after `finish` has returned
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    data = file.read_bytes()
    assert b"nantrap/loss" in data
    assert b"nantrap/eval/accuracy" in data
    assert wandb.run is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow_in_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())  # the one store that mlflow-skinny has, too
    feed(open_exporters(["mlflow"], run_dir=tmp_path / "exp1", facts={"model": "Net"}))
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("nantrap")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["model"]) == ("exp1", "FINISHED", "Net")
    history = client.get_metric_history(run.info.run_id, "nantrap/loss")
    assert [metric.step for metric in history] == [3, 4]
    assert run.data.metrics["nantrap/eval/accuracy"] == 0.75
    assert "nantrap.incident.000003-r0" in run.data.tags


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trackio_in_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("trackio")
    feed(open_exporters(["trackio"], run_dir=tmp_path / "exp1", facts={"model": "Net"}))
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"exp1" in stored
    assert b"eval/accuracy" in stored
