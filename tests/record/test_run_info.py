"""`run.json` keeps no secret, and a run cleans up after one that was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nantrap.incident import Incident
from nantrap.record import read_bundle, write_bundle, write_run_info
from nantrap.record.run_info import redacted


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--password", "hunter2"], ["--password", "[redacted]"]),
        (["--password=hunter2"], ["--password=[redacted]"]),
        (["--wandb-api-key", "abc"], ["--wandb-api-key", "[redacted]"]),
        (["--hf_token=hf_x"], ["--hf_token=[redacted]"]),
        (["+wandb.api_key=abc"], ["+wandb.api_key=[redacted]"]),
        (["AWS_SECRET_ACCESS_KEY=abc"], ["AWS_SECRET_ACCESS_KEY=[redacted]"]),
        (["--dbUrl", "postgres://me:hunter2@host/db"], ["--dbUrl", "postgres://[redacted]@host/db"]),
        (["hf_abcdefghijklmnopqrstuvwxyz"], ["[redacted]"]),
        (["--authToken", "abc"], ["--authToken", "[redacted]"]),
    ],
)
def test_secrets_are_left_out(given: list[str], shown: list[str]) -> None:
    assert redacted(given) == shown


@pytest.mark.parametrize(
    "given",
    [
        ["--lr", "1e-4"], ["--tokenizer", "gpt2"], ["--max_tokens", "512"], ["--num_key_value_heads", "8"],
        ["--pad_token", "<pad>"], ["--key", "5"], ["--password", "--lr", "1"], ["train.py"], ["--passes", "3"],
    ],
)  # fmt: skip
def test_everything_else_stays(given: list[str]) -> None:
    assert redacted(given) == given


def test_the_home_folder_does_not_name_the_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane")
    monkeypatch.setattr(sys, "argv", ["/home/jane/train.py", "--data=/home/jane/data", "/home/janet"])
    document = json.loads(write_run_info(tmp_path, {"folder": "/home/jane/x"}).read_text())
    assert document["arguments"] == ["~/train.py", "--data=~/data", "/home/janet"]
    assert document["folder"] == "~/x"


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom nantrap.record.durable import folder_beside\n"
        "with folder_beside(Path(sys.argv[1]), '000001-r0') as folder:\n"
        "    (folder / 'incident.json').write_text('{')\n    os._exit(9)\n"
    )
    incidents = tmp_path / "incidents"
    incidents.mkdir()
    subprocess.run([sys.executable, "-c", script, str(incidents)], timeout=120, check=False)
    (left,) = incidents.iterdir()
    assert left.name.startswith(".writing-")
    living = incidents / f".writing-{os.getppid()}-x"
    living.mkdir()
    write_run_info(tmp_path, {})
    assert list(incidents.iterdir()) == [living]


def test_several_runs_in_one_folder_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(9) as pool:
        paths = list(pool.map(lambda n: write_bundle(tmp_path, Incident(7, phase="forward"), text=str(n)), range(20)))
    assert len(set(paths)) == 20
    for path in paths:
        assert read_bundle(path).incident.step == 7
        assert json.loads((path / "incident.json").read_text())["bundle"] == str(path)
    assert not [path for path in (tmp_path / "incidents").iterdir() if path.name.startswith(".")]


def test_rank_1_does_not_thin_out_rank_10(tmp_path: Path) -> None:
    for step in range(4):
        write_bundle(tmp_path, Incident(step, phase="forward", rank=10), text="x", most=2)
        write_bundle(tmp_path, Incident(step, phase="forward", rank=1), text="x", most=2)
    assert len(list((tmp_path / "incidents").glob("*-r10"))) == 2
    assert len(list((tmp_path / "incidents").glob("*-r1"))) == 2
