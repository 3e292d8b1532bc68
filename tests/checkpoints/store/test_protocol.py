"""Every interleaving of a writer, a killed writer and a reader, and every power cut: nothing whole is lost or moved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import nantrap
from checkpoints.store.runs import damage
from nantrap.checkpoints import CheckpointStore
from nantrap.checkpoints.store.store import save_alone
from nantrap.record.durable import put_in_place, written_beside

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="forks, and reads /proc")


def seen(mode: str, folder: Path, every: int = 1) -> list[dict[str, Any]]:
    program = Path(__file__).with_name("interleaving.py")
    command = [sys.executable, str(program), mode, str(folder), str(every)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, env={**os.environ})
    assert result.returncode == 0, result.stderr
    return list(json.loads(result.stdout))


@pytest.mark.parametrize(("every", "least"), [(6, 500), pytest.param(1, 4000, marks=pytest.mark.slow)])
def test_a_reader_sees_a_whole_checkpoint_at_every_moment_and_moves_nothing(
    tmp_path: Path, every: int, least: int
) -> None:
    looks = seen("interleave", tmp_path, every)
    assert len(looks) > least
    for look in looks:
        assert (look["step"], look["value"]) in [(1, 1.0), (2, 1.5), (2, 2.0)], look
        assert (look["aside"], look["said"], look["sick"]) == ([], [], []), look


def test_after_a_power_cut_every_save_that_returned_is_there(tmp_path: Path) -> None:
    looks = seen("power", tmp_path)
    assert len(looks) > 200
    for look in looks:
        if not look["returned"] and look["step"] < 1:
            continue  # nothing was promised yet
        assert look["step"] >= look["returned"], look
        assert look["value"] == look["step"], look
        assert (look["aside"], look["said"], look["sick"]) == ([], [], []), look


def fill(folder: Path, steps: range) -> CheckpointStore:
    store = CheckpointStore(folder, keep=2)
    for step in steps:
        store.save(step=step, model={"w": torch.full((8,), float(step))}, rng=False)
    return store


def test_only_files_that_the_store_wrote_are_rotated_away(tmp_path: Path) -> None:
    """Files of other programs, of `guard.save`, and copies of a checkpoint stay, whatever they are called."""
    store = fill(tmp_path, range(1, 3))
    save_file({"w": torch.ones(2)}, tmp_path / "step-000000.safetensors")
    save_alone(tmp_path / "step-best.safetensors", {"step": 1, "model": {"w": torch.ones(2)}}, step=1)
    shutil.copy(tmp_path / "step-000001.safetensors", tmp_path / "step-000001-mine.safetensors")
    save_file({"w": torch.ones(2)}, tmp_path / "step-000002.safetensors")  # in the place of one of ours
    fill(tmp_path, range(3, 8))
    left = {path.name for path in tmp_path.glob("step-*")}
    assert left == {
        "step-000000.safetensors", "step-000001-mine.safetensors", "step-000002.safetensors",
        "step-best.safetensors", "step-000006.safetensors", "step-000007.safetensors",
    }  # fmt: skip
    assert store.load().step == 7


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_checkpoint_is_never_deleted(tmp_path: Path, cut: bool) -> None:
    fill(tmp_path, range(1, 3))
    path = tmp_path / "step-000001.safetensors"
    damage(path)
    if cut:
        path.write_bytes(path.read_bytes()[:100])
    damaged = path.read_bytes()
    fill(tmp_path, range(3, 6))
    kept = path if cut else tmp_path / "quarantine" / path.name
    assert kept.read_bytes() == damaged


def test_a_temporary_file_of_another_writer_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    """`guard.save` into the store's folder, while the store saves."""
    with written_beside(tmp_path / "best.safetensors") as file:
        file.write(b"half")
        fill(tmp_path, range(1, 2))
    put_in_place(tmp_path / "best.safetensors")
    assert (tmp_path / "best.safetensors").read_bytes() == b"half"


def test_numbers_in_the_manifest_that_are_none(tmp_path: Path) -> None:
    store = fill(tmp_path, range(1, 2))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 1', '"step": 1e999'))
    with pytest.warns(RuntimeWarning, match="listed by their own headers instead"):
        assert store.load().step == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CheckpointStore(None), r"CheckpointStore\(None\): expected the path of a folder"),  # type: ignore[arg-type]
        (lambda: CheckpointStore("x", keep="3"), r"keep='3'\): expected an integer"),  # type: ignore[arg-type]
        (lambda: CheckpointStore("x", keep=1.5), r"keep=1.5\): expected an integer"),  # type: ignore[arg-type]
        (lambda: CheckpointStore("x", keep=True), r"keep=True\): expected an integer"),
        (lambda: CheckpointStore("x").load([1]), r"load\(\[1\]\): expected last_good, latest, a step"),  # type: ignore[arg-type]
        (lambda: CheckpointStore("x").load(None), r"load\(None\): expected last_good, latest, a step"),  # type: ignore[arg-type]
        (lambda: CheckpointStore("x").pin(3), r"3 is no checkpoint of a store; give one of"),  # type: ignore[arg-type]
        (lambda: CheckpointStore("x").save(step=1, extras=[1]), r"save\(extras=list\): expected a dict"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_get_an_error_with_words(
    make: Callable[[], Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(nantrap.UsageError, match=words):
        make()
