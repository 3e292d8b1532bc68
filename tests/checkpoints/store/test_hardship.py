"""Kill -9 at any moment, a full disk, a read-only folder, two parallel writers: really done, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")


def hardship(mode: str, folder: Path) -> Any:
    program = Path(__file__).with_name("hardship.py")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), mode, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    trials = hardship("random", tmp_path / "store")
    assert len(trials) == 50
    for trial in trials:
        assert trial["whole"], trial
        # what was promised is there; a save that was killed after its rename may be one more
        assert trial["promised"] <= trial["step"] <= trial["promised"] + 1, trial
        assert trial["count"] >= min(3, trial["step"]), trial
    assert trials[-1]["step"] >= 50  # each life got a little further


def test_killed_at_every_call_that_changes_the_disk(tmp_path: Path) -> None:
    trials = hardship("every", tmp_path)
    assert len(trials) > 30
    for trial in trials:
        assert trial["whole"], trial
        assert trial["step"] >= trial["promised"], trial
        assert trial["count"] >= 3, trial
        assert (trial["again"], trial["whole_again"], trial["left"]) == (5, True, 0), trial
    assert {trial["step"] for trial in trials} == {3, 4}


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return hardship("rest", tmp_path_factory.mktemp("rest"))


def test_two_parallel_writers_lose_nothing(rest: Any) -> None:
    two = rest["two"]
    assert two["codes"] == [0, 0]
    assert two["steps"] == [*range(1000, 1025), *range(2000, 2025)]
    assert two["sequences"] == list(range(1, 51))
    assert two["damaged"] == []


def test_a_full_disk_is_reported_and_harms_nothing(rest: Any) -> None:
    limit, data, manifest, pointer, afterwards = rest["full"]
    assert limit["message"] == (
        "OSError: [Errno 27] the checkpoint of step 3 was not saved: File too large; "
        "the last good one is step-000002.safetensors: 'FOLDER/step-000003.safetensors'"
    )
    for failed in (data, manifest):
        assert failed["message"] == (
            "OSError: [Errno 28] the checkpoint of step 3 was not saved: No space left on device; "
            "the last good one is step-000002.safetensors: 'FOLDER/step-000003.safetensors'"
        )
    for failed in (limit, data, manifest):
        assert (failed["step"], failed["whole"], failed["count"], failed["left"]) == (2, True, 2, 0)
    assert (pointer["message"], pointer["step"], pointer["whole"]) == ("done: None", 3, True)
    assert (afterwards["step"], afterwards["whole"]) == (4, True)


def test_a_read_only_folder_can_be_loaded_from(rest: Any) -> None:
    told = rest["read_only"]
    assert told["saved"] == (
        "PermissionError: [Errno 13] the checkpoint of step 3 was not saved: Permission denied; "
        "the last good one is step-000002.safetensors: 'FOLDER'"
    )
    assert told["loaded"] == "done: 2"
    assert told["fallen_back"].startswith("done: (1, ")
    assert "left where it is: [Errno 13] Permission denied" in told["fallen_back"]
