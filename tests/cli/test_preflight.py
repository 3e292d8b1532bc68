"""`nantrap preflight` on the command line, and the pytest plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.cli import main
from nantrap.pytest_plugin import assert_replays_clean, run_preflight

FACTORY = """
import torch
from torch import nn

def make(eps=1e-6):
    model = nn.Linear(4, 1)
    def loss(model, batch):
        return model(batch / (batch.norm(dim=1, keepdim=True) + eps)).square().mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "batch": torch.randn(4, 4), "loss": loss}

def broken():
    return make(eps=0.0)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "preflight_training.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_exit_codes_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "preflight_training:broken", "--json", "--no-ranks"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["schema"] == "nantrap.preflight/1"
    assert [check["name"] for check in document["checks"] if check["status"] == "fail"] == ["edge: zeros"]
    assert all(len(line) <= 80 for line in err.splitlines())
    assert "fail edge: zeros" in err
    assert main(["preflight", "preflight_training"]) == 2
    assert "names no factory; write module:function" in capsys.readouterr().err


def test_a_failed_preflight_fails_the_test(folder: Path) -> None:
    assert run_preflight("preflight_training:make").passed
    with pytest.raises(pytest.fail.Exception) as caught:
        run_preflight("preflight_training:broken")
    assert "edge: zeros: division_by_zero[NT202] in loss (aten.div) at preflight_training.py:8" in str(caught.value)


def test_a_factory_that_cannot_be_used_fails_the_test_in_words() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"the preflight could not be made: .* gave an object of type int"):
        run_preflight(lambda: 5)


def test_the_plugin_offers_its_fixtures_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_names(nantrap_preflight, assert_replays_clean):\n"
        "    assert callable(nantrap_preflight) and callable(assert_replays_clean)\n"
        "    assert 'torch' not in sys.modules\n"
    )
    arguments = ["-q", "-p", "nantrap.pytest_plugin", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_a_captured_failure_is_replayed(tmp_path: Path) -> None:
    import torch
    from torch import nn

    import nantrap

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = nantrap.Policy(bundle=nantrap.Bundle(kind="full", data=True))
    with nantrap.Guard(model, optimizer, policy=policy, run_dir=tmp_path / "run", quiet=True) as guard:
        guard.attempt(lambda batch: (model(batch) * 0 - 1).log().mean(), torch.ones(3, 2))
    bundle = next((tmp_path / "run" / "incidents").iterdir())

    def entry(repaired: bool) -> object:
        again = nn.Linear(2, 1)
        loss = (lambda batch: again(batch).mean()) if repaired else (lambda batch: (again(batch) * 0 - 1).log().mean())
        return again, torch.optim.SGD(again.parameters(), lr=0.1), loss

    assert assert_replays_clean(bundle, lambda: entry(repaired=True)).reproduced is False
    with pytest.raises(pytest.fail.Exception, match="is still there: "):
        assert_replays_clean(bundle, lambda: entry(repaired=False))
