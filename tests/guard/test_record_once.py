"""An incident is recorded once, after the action is known: memory, bundle, journal and message say the same."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import nantrap
from guard.loops import FORMS, make_run, poison
from journals import steps_in
from nantrap import Guard, Policy, Rollback

NAN = float("nan")


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("incidents/*/incident.json"))]


@pytest.mark.parametrize("form", FORMS)
def test_strict_says_stop_everywhere(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    guard = run.guard(policy=Policy.strict(), run_dir=tmp_path, quiet=False)
    with pytest.raises(nantrap.NonFiniteError) as stopped:
        FORMS[form](run, guard, [(poison(run.batches[0]),)])
    incident = stopped.value.incident
    assert (incident.action, incident.restored) == ("stop", True)
    assert [each["action"] for each in written(tmp_path)] == ["stop"]
    assert [line["action"] for line in steps_in(tmp_path)] == ["stop"]
    assert "step 0 stopped" in capsys.readouterr().err
    assert guard.last_incident == incident
    assert guard.tally.incidents == 1


def test_strict_with_an_exception_says_stop_everywhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    guard = Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), policy=Policy.strict(), run_dir=tmp_path, quiet=True
    )

    def loss(x: Tensor) -> Tensor:
        return Categorical(logits=model(x), validate_args=True).entropy().mean()

    x = torch.randn(8, 4)
    x[3, 1] = NAN
    with pytest.raises(nantrap.NonFiniteError) as stopped:
        guard.attempt(loss, x)
    assert stopped.value.incident.action == "stop"
    assert [each["action"] for each in written(tmp_path)] == ["stop"]
    assert [line["action"] for line in steps_in(tmp_path)] == ["stop"]


def test_a_rollback_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run()
    policy = Policy(max_consecutive_skips=0, rollback=Rollback(anchor_every=1), diagnose="locate")
    guard = run.guard(policy=policy, run_dir=tmp_path)
    FORMS["attempt"](run, guard, run.windows(run.batches[:3]))
    monkeypatch.setattr("nantrap.guard.ranks.ranks.Ranks.share", lambda self, own: {0: own, 1: []})  # 1 has no anchor
    with pytest.raises(nantrap.NonFiniteError, match="no older state could be restored"):
        guard.attempt(run.forward, poison(run.batches[3]))
    assert [each["action"] for each in written(tmp_path)] == ["stop"]
    assert [line["action"] for line in steps_in(tmp_path)][-1] == "stop"
    assert guard.tally.rollbacks == 0


def test_what_could_not_be_put_back_is_named() -> None:
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training and bool(x.isnan().any()):  # never before, so no copy was made of it
                with torch.no_grad():
                    self.layer.bias.add_(1.0)
            return self.layer(x)

    run = make_run(model=Stubborn)
    guard = run.guard(policy=Policy(diagnose="off"))
    FORMS["attempt"](run, guard, run.windows(run.batches[:3]))
    incident = guard.attempt(run.forward, poison(run.batches[3])).incident
    assert incident is not None
    assert incident.restored is False
    assert incident.notes == ("not restored to the values before the step: a parameter that the forward pass writes",)
    assert "restored the training state" not in nantrap.report.render_incident(incident)


def test_a_kill_during_the_diagnosis_leaves_a_line(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import os, signal, torch, nantrap
        import nantrap.guard.diagnosis.diagnose as diagnosis
        diagnosis.locate = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        model = torch.nn.Linear(2, 1)
        guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir={str(tmp_path)!r})
        guard.attempt(lambda x: model(x).mean(), torch.ones(3, 2))
        guard.attempt(lambda x: model(x).mean() * float("nan"), torch.ones(3, 2))
        """
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=120)
    assert ended.returncode < 0
    lines = [json.loads(line) for line in (tmp_path / "journal-r0.jsonl").read_text().splitlines()]
    assert [(line["step"], line.get("kind", "step")) for line in lines] == [(0, "step"), (1, "incident_begins")]
    assert lines[1]["found"][0] == "loss loss"
    assert [line["step"] for line in steps_in(tmp_path)] == [0], "a reader of steps passes it over"


def test_position_and_evaluation_are_in_the_journal(tmp_path: Path) -> None:
    run = make_run()
    with run.guard(run_dir=tmp_path) as guard:
        guard.set_position(epoch=2, batch=7)
        guard.attempt(run.forward, run.batches[0])
        incident = guard.attempt(run.forward, poison(run.batches[1])).incident
        guard.log_eval(None, {"val_loss": 0.5})
        guard.log_eval(10, {"val_loss": torch.tensor(0.25)})  # type: ignore[dict-item]
    assert incident is not None
    assert (incident.epoch, incident.batch) == (2, 7)
    lines = [json.loads(line) for line in (tmp_path / "journal-r0.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["batch"], line["by"]) for line in lines if "action" in line] == [(2, 7, "guard")] * 2
    evaluations = [line for line in lines if line.get("kind") == "eval"]
    assert [(line["step"], line["metrics"]) for line in evaluations] == [
        (1, {"val_loss": 0.5}),
        (10, {"val_loss": 0.25}),
    ]
    with pytest.raises(nantrap.UsageError, match="metrics is a dict"):
        guard.log_eval(1, 0.5)  # type: ignore[arg-type]
    with pytest.raises(nantrap.UsageError, match="val_loss='low' is not a number"):
        guard.log_eval(1, {"val_loss": "low"})  # type: ignore[dict-item]
    with pytest.raises(nantrap.UsageError, match="epoch='two'"):
        guard.set_position(epoch="two")  # type: ignore[arg-type]


def test_the_summary_is_printed_without_close() -> None:
    program = textwrap.dedent(
        """
        import torch, nantrap
        model = torch.nn.Linear(2, 1)
        guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for factor in (1.0, float("nan"), 1.0):
            guard.backward(model(torch.ones(3, 2)).mean() * factor)
            guard.step()
        """
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert "nantrap: 3 steps, 2 applied (66.7 %)\n1 incident, 1 skipped step" in ended.stderr


def test_the_first_cause_has_its_own_name() -> None:
    run = make_run()
    incident = run.guard().attempt(run.forward, poison(run.batches[0])).incident
    assert incident is not None
    assert incident.cause is incident.causes[0]
    assert nantrap.Incident(step=0).cause is None
