"""Exporters and alerts of a guard: what they get, and that they change nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import nantrap
from nantrap import record
from nantrap.errors import UsageError


class Kept:
    """An exporter that keeps what it gets, and fails if asked to."""

    name = "kept"

    def __init__(self, *, fails: bool = False) -> None:
        self.got: list[tuple[str, int, object]] = []
        self._fails = fails

    def values(self, step: int, values: Mapping[str, float]) -> None:
        self.got.append(("values", step, dict(values)))
        if self._fails:
            raise OSError("no space left")

    def incident(self, incident: nantrap.Incident, text: str) -> None:
        self.got.append(("incident", incident.step, text))

    def close(self) -> None:
        self.got.append(("close", -1, None))


def train(**options: object) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with nantrap.Guard(model, optimizer, quiet=True, watch={"bias": 5.0}, **options) as guard:  # type: ignore[arg-type]
        for step in range(6):
            batch = torch.randn(4, 3)
            if step == 2:
                batch[0, 0] = float("nan")
            losses.append(guard.attempt(lambda x: model(x).square().mean(), batch).loss)
        guard.log_eval(5, {"accuracy": 0.5})
    return losses, model.weight.detach().clone()


def test_an_exporter_gets_steps_incidents_and_evaluations() -> None:
    kept = Kept()
    train(export=[kept])
    assert [(kind, step) for kind, step, _ in kept.got if kind != "values"] == [("incident", 2), ("close", -1)]
    steps = [(step, values) for kind, step, values in kept.got if kind == "values"]
    assert [step for step, _ in steps] == [0, 1, 2, 3, 4, 5, 5]
    first = steps[0][1]
    assert isinstance(first, dict)
    assert {"loss", "grad_norm", "lr", "applied", "watch/bias"} <= first.keys()
    assert steps[2][1]["applied"] == 0.0  # type: ignore[index]
    assert steps[6][1] == {"eval/accuracy": 0.5}
    text = next(item for kind, _, item in kept.got if kind == "incident")
    assert str(text).startswith("error[")


def test_training_is_the_same_with_an_exporter_that_fails() -> None:
    plain, weight = train()
    with pytest.warns(RuntimeWarning, match="export to kept: switched off after OSError: no space left"):
        losses, same = train(export=[Kept(fails=True)])
    assert torch.equal(weight, same)
    assert str(losses) == str(plain)


def test_event_files_are_in_the_run_folder(tmp_path: Path) -> None:
    train(export="tensorboard", run_dir=tmp_path)
    run = record.open_run(tmp_path / "tensorboard")
    journal = record.open_run(tmp_path)
    assert run.main["loss"].step.tolist() == journal.main["loss"].step.tolist()
    assert journal.info["watch"] == {"bias": [{"min": None, "max": 5.0, "until": None}]}
    assert journal.evaluations["accuracy"].value.tolist() == [0.5]


def test_an_alert_is_sent_and_its_address_is_in_no_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; open({str(tmp_path / 'got.json')!r}, 'w').write(sys.stdin.read())"]
    alerts = nantrap.Alerts(command=command, slack="http://127.0.0.1:9/secret-token", on=("incident",))
    with pytest.warns(RuntimeWarning, match=r"alert by slack failed: no connection \(ConnectionRefusedError\)$"):
        train(alerts=alerts, run_dir=tmp_path / "run")
    document = json.loads((tmp_path / "got.json").read_text())
    assert (document["event"], document["step"], document["run"]) == ("incident", 2, "run")
    assert all(b"secret-token" not in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_a_wrong_name_is_an_error_before_the_run() -> None:
    with pytest.raises(UsageError, match="export='tensorbord': choose from"):
        train(export=["tensorbord"])
