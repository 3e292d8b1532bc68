"""Lightning with two devices and its own launcher, which starts the second rank as a process: both are guarded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "lightning_ranks.py")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_") and k not in ("RANK", "LOCAL_RANK")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
BAD = 9
pytest.importorskip("lightning")


def fit(folder: Path, *options: str, command: bool = False) -> tuple[list[dict[str, Any]], str]:
    """Train, alone or under `nantrap run`. Returns what both ranks ended with, and what was said."""
    folder.mkdir(exist_ok=True)
    guarded = ["-m", "nantrap", "run", "--run-dir", str(folder / "run")] if command else []
    ended = subprocess.run(
        [sys.executable, *guarded, SCRIPT, str(folder), *options],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)], ended.stderr


def check(folder: Path, results: list[dict[str, Any]], said: str) -> None:
    """Both ranks skipped the step with the bad sample, and only that; the rank that read it is named."""
    assert results[0] == results[1]
    assert results[0]["finite"]
    steps = []
    for rank in range(2):
        lines = map(json.loads, (folder / "run" / f"journal-r{rank}.jsonl").read_text().splitlines())
        steps.append([line["action"] for line in lines if "kind" not in line])
    assert steps[0] == steps[1]
    assert sorted(steps[0]) == ["apply", "apply", "apply", "skip"]
    (incident,) = [json.loads(path.read_text()) for path in (folder / "run").glob("incidents/*/incident.json")]
    assert incident["dataset_indices"] == [BAD]
    assert incident["source"]["text"].strip() == "loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])"
    assert incident["bad_ranks"] == [incident["rank"]] == [incident["origin_rank"]]
    assert "4 steps, 3 applied (75.0 %), 1 incident" in said
    assert said.count(" applied (") == 1, "the first rank alone speaks"


def test_under_nantrap_run(tmp_path: Path) -> None:
    results, said = fit(tmp_path, "--bad", str(BAD), command=True)
    check(tmp_path, results, said)


@pytest.mark.slow
def test_with_the_adapter(tmp_path: Path) -> None:
    results, said = fit(tmp_path, "--bad", str(BAD), "--adapter")
    check(tmp_path, results, said)


@pytest.mark.slow
def test_a_healthy_run_is_unchanged(tmp_path: Path) -> None:
    plain, _ = fit(tmp_path / "plain")
    assert fit(tmp_path / "adapter", "--adapter")[0] == plain
    assert fit(tmp_path / "command", command=True)[0] == plain
