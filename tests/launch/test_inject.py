"""`nantrap run --inject`: faults on purpose in a script that knows nothing of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from nantrap.cli import main
from nantrap.errors import UsageError
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary


def train(steps: int = 8) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("kind", ["grad", "loss", "activation", "batch"])
def test_the_guard_holds_in_a_script(kind: str, tmp_path: Path) -> None:
    settings = RunSettings(inject=f"{kind}:step=3", run_dir=str(tmp_path / "run"), diagnose="off", quiet=True)
    with attached(settings) as attachment:
        model = train()
        summary = RunSummary.of(attachment)
    assert summary.injected == {kind: 1}
    assert (summary.steps, summary.applied, summary.incidents) == (8, 7, 1)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert f"faults injected on purpose: 1 × {kind}" in summary.lines(0)


def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a program that is run takes the place of the one that runs it: all of this is restored
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport test_inject\ntest_inject.train(30)\n"
    )
    arguments = [
        "run",
        "--inject",
        "grad:0.2,seed=1",
        "--run-dir",
        str(tmp_path / "run"),
        "--diagnose",
        "off",
        "--json",
    ]
    assert main([*arguments, str(script)]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["injected"]["grad"] == facts["incidents"] == facts["skipped"] > 1
    assert facts["state_finite"]


def test_a_wrong_text_is_refused_before_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit(7)")
    assert main(["run", "--inject", "gard:0.1", str(tmp_path / "script.py")]) == 2
    assert "there is no fault 'gard'" in capsys.readouterr().err
    with pytest.raises(UsageError):
        RunSettings(inject="grad")
