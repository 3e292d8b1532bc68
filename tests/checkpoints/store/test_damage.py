"""Damage after the save: found by hash, put aside, never deleted, and an older one is loaded with a warning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nantrap
from checkpoints.store.runs import damage, files_of
from nantrap.checkpoints import CheckpointStore
from nantrap.checkpoints.audit import audit


def filled(folder: Path, steps: tuple[int, ...] = (100, 200, 300)) -> CheckpointStore:
    store = CheckpointStore(folder)
    for step in steps:
        store.save(step=step, model={"weight": torch.full((64,), float(step))}, rng=False)
    return store


def path_of(store: CheckpointStore, step: int) -> Path:
    return store.folder / f"step-{step:06d}.safetensors"


def test_a_flipped_bit_is_found_and_the_older_one_is_loaded(tmp_path: Path) -> None:
    store = filled(tmp_path)
    damage(path_of(store, 300))
    damaged = path_of(store, 300).read_bytes()
    with pytest.warns(RuntimeWarning) as warned:
        loaded = store.load()
    assert str(warned[0].message) == (
        "nantrap: damaged: step-000300.safetensors (its bytes do not match their checksum; the file is damaged), "
        "moved to quarantine/step-000300.safetensors. Loading step-000200.safetensors (step 200) instead"
    )
    assert loaded.step == 200
    assert loaded.state["model"]["weight"][0] == 200
    assert len(loaded.instead_of) == 1
    assert (tmp_path / "quarantine" / "step-000300.safetensors").read_bytes() == damaged
    good = store.last_good()
    assert good is not None
    assert good.step == 200
    assert json.loads((tmp_path / "last-good.json").read_text())["step"] == 200
    assert audit(tmp_path).healthy  # the quarantine is out of sight


def test_a_step_or_a_path_falls_back_too_or_raises_if_asked_to(tmp_path: Path) -> None:
    store = filled(tmp_path)
    damage(path_of(store, 200))
    with pytest.raises(
        nantrap.FormatError, match=r"the checkpoint is damaged: step-000200.*last good one is step-000300"
    ):
        store.load(200, fallback=False)
    store = filled(tmp_path / "again")
    damage(path_of(store, 200))
    with pytest.warns(RuntimeWarning, match=r"Loading step-000100\.safetensors"):
        assert store.load(path_of(store, 200)).step == 100  # an older one, not a newer one


def test_all_damaged(tmp_path: Path) -> None:
    store = filled(tmp_path, (1, 2))
    damage(path_of(store, 1))
    path_of(store, 2).write_bytes(b"")
    with pytest.raises(
        nantrap.FormatError, match=r"no whole checkpoint was found: step-000002.*step-000001.*quarantine"
    ):
        store.load()
    assert files_of(tmp_path) == set()
    assert len(list((tmp_path / "quarantine").glob("*.safetensors"))) == 2
    store.save(step=3, model={"w": torch.ones(1)})
    assert store.load().step == 3


def test_a_lost_manifest_is_made_again_from_the_files(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert [saved.step for saved in store.checkpoints()] == [300, 200, 100]
    assert store.load().step == 300
    damage(path_of(store, 300))
    with pytest.warns(RuntimeWarning, match="its bytes do not match their checksum"):
        assert store.load().step == 200
    store.save(step=400, model={"w": torch.ones(1)})
    assert all(saved.sha256 for saved in store.checkpoints())


def test_a_damaged_manifest_is_reported_and_replaced(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": "nantrap.manif')
    with pytest.warns(RuntimeWarning, match="cannot be read .* listed by their own headers instead"):
        assert store.load().step == 300
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        store.save(step=400, model={"w": torch.ones(1)})
    assert [saved.step for saved in store.checkpoints()] == [400, 300, 200]


def test_a_file_of_another_program_in_our_place(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    store = filled(tmp_path, (1,))
    save_file({"w": torch.ones(2)}, tmp_path / "step-000009.safetensors")
    assert store.load().step == 1
    assert store.load("latest").step == 1
    with pytest.raises(nantrap.FormatError, match=r"step-000009\.safetensors \(not written by nantrap"):
        store.load(9)
    assert (tmp_path / "step-000009.safetensors").exists()  # not ours to move


def test_bytes_in_front_are_as_safe_as_bytes_behind(tmp_path: Path) -> None:
    store = filled(tmp_path, (1,))
    saved = store.checkpoints()[0]
    original = saved.path.read_bytes()

    @given(st.integers(0, len(original) - 1), st.integers(0, 7))
    def flip(position: int, bit: int) -> None:
        data = bytearray(original)
        data[position] ^= 1 << bit
        saved.path.write_bytes(bytes(data))
        if store.verify(saved) == "":  # a bit that changes nothing: a blank at the end of the header
            assert torch.equal(store.load(fallback=False).state["model"]["weight"], torch.full((64,), 1.0))

    @given(st.integers(0, len(original) - 1))
    def cut(length: int) -> None:
        saved.path.write_bytes(original[:length])
        assert store.verify(saved) != ""

    flip()
    cut()
    saved.path.write_bytes(original)
    assert store.verify(saved) == ""


def test_a_file_without_a_manifest_checks_itself(tmp_path: Path) -> None:
    """`guard.save(path)` writes a single file: no manifest knows its hash."""
    store = filled(tmp_path / "store", (1,))
    original = path_of(store, 1).read_bytes()
    alone = tmp_path / "alone.safetensors"

    @given(st.integers(0, len(original) - 1), st.integers(0, 7))
    def flip(position: int, bit: int) -> None:
        data = bytearray(original)
        data[position] ^= 1 << bit
        alone.write_bytes(bytes(data))
        try:
            state = store.load(alone).state
        except nantrap.FormatError:
            return
        # a bit that changes nothing: a blank at the end of the header, the case of a letter in an escape
        assert torch.equal(state["model"]["weight"], torch.full((64,), 1.0))

    flip()
    assert alone.exists()  # what is not in the store is never moved


def test_a_module_is_untouched_when_nothing_whole_is_found(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    store = CheckpointStore(tmp_path)
    path = store.save(step=1, model=model)
    damage(path)
    before = model.weight.clone()
    with pytest.raises(nantrap.FormatError):
        store.load(model=model)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", "null", "3", '{"schema": "nantrap.manifest/1"}', '{"schema": "nantrap.manifest/1", "files": []}',
        '{"schema": "nantrap.manifest/1", "files": {"step-000010.safetensors": 5}}',
        '{"schema": "nantrap.manifest/1", "files": {"step-000010.safetensors": {"step": "x"}}}', '{"schema": 7}',
    ],
)  # fmt: skip
def test_a_manifest_of_wrong_types_is_made_again_from_the_files(tmp_path: Path, text: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(step=10, model={"w": torch.ones(2)})
    (tmp_path / "manifest.json").write_text(text)
    with pytest.warns(RuntimeWarning, match="the checkpoints are listed by their own headers instead"):
        assert [saved.step for saved in store.checkpoints()] == [10]
    with pytest.warns(RuntimeWarning, match="headers"):
        store.save(step=20, model={"w": torch.ones(2)})
    assert [saved.step for saved in store.checkpoints()] == [20, 10]
