"""The end of a run: its last line in the journal, with and without `close()`, and after an exception."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.record import open_run

SCRIPT = """
import torch, nantrap
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = nantrap.Guard(model, optimizer, run_dir="run")
for step in range(3):
    guard.backward(model(torch.ones(4, 2)).square().mean())
    guard.step()
{end}
"""


@pytest.mark.parametrize(
    ("end", "error", "code"),
    [
        ("raise SystemExit(4)", None, 4),
        ("raise ValueError('no more data')", "ValueError", 1),
        ("with guard:\n    raise KeyError('name')", "KeyError", 1),
    ],
    ids=["never closed", "exception", "exception in a with block"],
)
def test_the_journal_says_that_the_run_is_over(tmp_path: Path, end: str, error: str | None, code: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(end=end))
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == code, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal-r0.jsonl").read_text().splitlines()]
    assert [line.get("kind", "step") for line in lines] == ["step"] * 3 + ["run_ends"]
    assert (lines[-1]["step"], lines[-1].get("error")) == (3, error)
    assert (tmp_path / "run" / "report.html").exists()
    run = open_run(tmp_path / "run")
    assert run.is_over
    assert run.end is not None
    assert len(run.main) == 3
