"""DeepSpeed with two ranks, ZeRO 0 to 3: a step that is not finite is skipped by all ranks and explained, and a healthy
run is as without a guard, bit for bit.

DeepSpeed is not among the development tools: `pip install --no-build-isolation deepspeed` with `DS_BUILD_OPS=0` and
`DS_ACCELERATOR=cpu` in the environment (half a minute) installs it where these tests shall run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parent / "scripts" / "deepspeed_ranks.py")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_") and k not in ("RANK", "LOCAL_RANK")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
HEALTHY = ("0:fp32:none:1", "0:bf16:none:2", "1:bf16:none:1", "2:fp16:none:2", "3:bf16:none:2", "2:bf16:offload:2")
SEARCHES = ("1:fp16:search:1", "2:fp16:search:1", "3:fp16:search:1")
FAULTS = {
    "0:bf16:nan_sample:1": "bad_input_data",
    "1:bf16:nan_sample:1": "bad_input_data",
    "2:fp16:nan_sample:2": "bad_input_data",
    "3:bf16:nan_sample:1": "bad_input_data",
    "1:bf16:nan_sample_first:3": "bad_input_data",
    "2:fp16:nan_sample_first:2": "bad_input_data",
    "3:bf16:nan_sample_first:2": "bad_input_data",
    "1:bf16:inf_gradient:1": "singular_gradient_at_zero",
    "3:bf16:inf_gradient:1": "singular_gradient_at_zero",
    "2:fp16:overflow:1": "fp16_forward_overflow",
    "2:bf16:nan_weights:1": "corrupt_checkpoint",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="needs DeepSpeed: DS_ACCELERATOR=cpu DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed",
    ),
]


def launch(*arguments: str, guarded: Path | None = None) -> str:
    """Train on two ranks; returns what was said."""
    command = [SCRIPT, *arguments]
    if guarded is not None:
        command = ["-m", "nantrap", "run", "--run-dir", str(guarded), *command]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
        + [sys.executable, *command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case once: alone, and with the adapter."""
    folder = tmp_path_factory.mktemp("deepspeed")
    launch(str(folder), *HEALTHY, *SEARCHES, *FAULTS)
    launch(str(folder), "--adapter", *HEALTHY, *SEARCHES, *FAULTS, "2:bf16:save:1")
    return folder


def ended(folder: Path, case: str, kind: str) -> list[dict[str, Any]]:
    """What both ranks of a case ended with."""
    stem = case.replace(":", "-")
    return [json.loads((folder / f"{stem}-{kind}-{rank}.json").read_text()) for rank in range(2)]


def incidents(run: Path) -> list[dict[str, Any]]:
    """The incidents of a run."""
    return [json.loads(path.read_text()) for path in sorted(run.glob("incidents/*/incident.json"))]


@pytest.mark.parametrize("case", [*HEALTHY, *SEARCHES])
def test_a_healthy_run_is_unchanged(folder: Path, case: str) -> None:
    """The search for a loss scale skips steps, and these are no incidents."""
    assert ended(folder, case, "adapter") == ended(folder, case, "plain")
    assert incidents(folder / case.replace(":", "-")) == []
    journal = (folder / case.replace(":", "-") / "journal-r0.jsonl").read_text()
    assert "NT871" not in journal
    assert "zero_grad_missing" not in journal
    skipped = [rank["skipped"] for rank in ended(folder, case, "adapter")]
    assert (skipped[0] > 0) is ("search" in case)


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_skipped_by_all_ranks_and_explained(folder: Path, case: str) -> None:
    ranks = ended(folder, case, "adapter")
    everywhere = "nan_weights" in case
    assert [rank["skipped"] for rank in ranks] == ([4, 4] if everywhere else [1, 1])
    found = incidents(folder / case.replace(":", "-"))
    assert found
    causes = {incident["causes"][0]["slug"] for incident in found if incident["causes"]}
    assert causes == {FAULTS[case]}
    if not everywhere:
        assert {(incident["step"], incident["origin_rank"]) for incident in found} == {(2, 1)}
        assert all("nan" not in str(rank["state"]) for rank in ranks)
    if "nan_sample" in case:
        assert found[0]["samples"] == [3]


def test_the_loss_scale_stays_after_a_refused_step(folder: Path) -> None:
    """DeepSpeed alone halves it, as if a smaller scale helped against a NaN in the data."""
    plain, guarded = (ended(folder, "2:fp16:nan_sample:2", kind)[0]["scale"] for kind in ("plain", "adapter"))
    assert plain < guarded


def test_a_checkpoint_with_nan_on_one_rank_is_saved_by_none(folder: Path) -> None:
    assert [rank["saved"][1] for rank in ended(folder, "2:bf16:save:1", "adapter")] == [False, False]
    assert (folder / "good").is_dir()
    assert not (folder / "bad").exists()


def test_nantrap_run_sees_the_engine(tmp_path: Path) -> None:
    """An unmodified script."""
    said = launch(str(tmp_path), "2:bf16:nan_sample:1", guarded=tmp_path / "run")
    (incident,) = incidents(tmp_path / "run")
    assert (incident["step"], incident["origin_rank"], incident["samples"]) == (2, 1, [3])
    assert [rank["skipped"] for rank in ended(tmp_path, "2:bf16:nan_sample:1", "plain")] == [1, 1]
    assert "4 steps, 3 applied (75.0 %), 1 incident" in said
    assert said.count(" applied (") == 1, "the first rank alone speaks"
