"""`nantrap watch` without a terminal: once, as JSON, and as lines until the run has ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.cli import main

BAR = "Epoch 1/1: 50%|█| {}/10 [00:01<00:01, 2.3it/s, loss={}, lr=1e-3]\n"


def test_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(BAR.format(i, 1 / i) for i in range(1, 8)) + "ValueError: NaN in the loss\n")
    assert main(["watch", str(log), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("train.log  running · step 7 of 10 (70.0%) · epoch 1 of 1 · written ")
    assert "last incident of 1:\nline 8, step 7: ValueError: NaN in the loss" in out
    assert main(["watch", str(log), "--once", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["step"], document["values"][0]["name"]) == ("nantrap.watch/1", 7, "loss")
    assert main(["watch", str(log), "--json"]) == 2
    assert main(["watch", str(log), "--once", "--interval", "0"]) == 2


def test_lines_in_a_pipe_until_the_run_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(BAR.format(i, 1 / i) for i in range(1, 11)))
    command = [sys.executable, "-m", "nantrap", "watch", str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.splitlines()[1] == "step 10  loss 0.1  lr 0.001"
    assert done.stdout.splitlines()[-1].startswith("train.log  finished · step 10 of 10")
