"""`nantrap diagnose`: which file goes to which command, one report, one exit code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

from nantrap.cli import main

CLEAN = "LEARNING_RATE = 1e-4\n"
FACTORY = """
import torch


def make():
    model = torch.nn.Linear(4, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "batch": torch.randn(8, 4),
        "loss": lambda model, batch: model(batch).square().mean(),
    }
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.py").write_text(CLEAN)
    (tmp_path / "data").mkdir()
    generator = torch.Generator().manual_seed(0)
    torch.save({"embeddings": torch.randn(32, 8, generator=generator)}, tmp_path / "data" / "embeddings_train.pt")
    torch.save({"model": torch.nn.Linear(3, 2).state_dict(), "step": 3}, tmp_path / "last.pth")
    return tmp_path


def codes(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, int | None]]:
    code = main(["diagnose", str(folder), "--json", *options])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nantrap.diagnose/1"
    assert document["exit_code"] == code
    return code, {name: part["exit_code"] for name, part in document["parts"].items()}


def test_a_healthy_project(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert codes(project, capsys) == (0, {"doctor": 0, "audit": 0, "data": 0, "preflight": None})
    assert main(["diagnose", str(project)]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()[-4:]] == ["risk", "ok", "ok", "checked"]
    asked = shlex.join(["nantrap", "diagnose", str(project), "--init"])
    assert f"no nantrap_preflight.py: `{asked}` writes one" in out, "into the folder that was checked"
    assert "last.pth" in out, "the whole report is on stdout"
    assert "embeddings: min -" in out
    assert err == ""


def test_each_part_may_fail_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "config.py").write_text('LEARNING_RATE = 0.5\nOPTIMIZER = "adamw"\n')
    assert codes(project, capsys) == (1, {"doctor": 1, "audit": 0, "data": 0, "preflight": None})
    (project / "config.py").write_text(CLEAN)
    torch.save({"embeddings": torch.full((32, 8), torch.nan)}, project / "data" / "embeddings_train.pt")
    assert codes(project, capsys) == (1, {"doctor": 0, "audit": 0, "data": 1, "preflight": None})
    (project / "data" / "embeddings_train.pt").unlink()
    torch.save({"model": {"weight": torch.full((3,), torch.nan)}}, project / "last.pth")
    assert codes(project, capsys) == (1, {"doctor": 0, "audit": 1, "data": None, "preflight": None})
    elsewhere = ["--checkpoints", str(project / "last.pth"), "--data", str(project / "absent.npy")]
    assert codes(project, capsys, *elsewhere)[0] == 2, "what was given and cannot be checked is an error"


def test_the_template_says_that_it_is_one(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(project), "--init"]) == 0
    assert (project / "nantrap_preflight.py").is_file()
    assert capsys.readouterr().out.rstrip().endswith(shlex.join(["then", "run", "nantrap", "diagnose", str(project)]))
    assert main(["diagnose", str(project), "--init"]) == 2
    assert "exists; nothing is overwritten" in capsys.readouterr().err
    assert main(["diagnose", str(project)]) == 2
    assert "nantrap_preflight.py is still the template" in capsys.readouterr().out
    assert main(["diagnose", str(project / "absent")]) == 2


@pytest.mark.slow
def test_the_factory_of_the_project_is_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "own_preflight.py").write_text(FACTORY)
    assert codes(project, capsys, "--factory", "own_preflight:make")[1]["preflight"] == 0
