"""Checkpoints that the frameworks wrote: healthy ones are called healthy, and nothing in them is overlooked."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nantrap.checkpoints.audit import CheckpointAudit, audit
from nantrap.checkpoints.audit.files import LocalSource
from nantrap.checkpoints.audit.readers import read_contents
from nantrap.checkpoints.audit.scan import scan

FIXTURES = Path(__file__).parent / "fixtures"
LIGHTNING = "lightning/epoch=1-step=4.ckpt"
TRAINER = "trainer/checkpoint-3"

TORCH_FILES = [
    LIGHTNING,
    f"{TRAINER}/optimizer.pt",
    f"{TRAINER}/scheduler.pt",
    f"{TRAINER}/rng_state.pth",
    "accelerate/optimizer.bin",
    "accelerate/scheduler.bin",
    "accelerate/scaler.pt",
    "accelerate/random_states_0.pkl",
    "accelerate/custom_checkpoint_0.pkl",
]
SAFETENSORS_FILES = [
    f"{TRAINER}/model.safetensors",
    "accelerate/model.safetensors",
    *(f"sharded/model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
]


class Width:
    """What the Lightning checkpoint needs in `__main__` to be loaded: its author's own class."""


@pytest.fixture(autouse=True)
def _width_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Width", Width, raising=False)
    monkeypatch.setattr(Width, "__module__", "__main__")


def load(path: Path) -> Any:
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=False)


def only(path: Path, **options: Any) -> CheckpointAudit:
    (checkpoint,) = audit(path, **options).checkpoints
    return checkpoint


def test_lightning() -> None:
    checkpoint = only(FIXTURES / LIGHTNING)
    assert (checkpoint.format, checkpoint.tensors, checkpoint.healthy) == ("lightning", 33, True)
    assert checkpoint.facts["step"] == 4
    assert checkpoint.facts["optimizer_step"] == 4
    custom, mask = checkpoint.problems
    assert (custom.severity, custom.imports) == ("warning", ("__main__.Width",))
    assert (mask.severity, mask.tensor) == ("warning", "state_dict.mask")
    assert mask.help == "nothing to do if it was put there on purpose, as a mask or a score is"


def test_transformers_trainer() -> None:
    checkpoint = only(FIXTURES / TRAINER)
    assert (checkpoint.format, checkpoint.tensors, checkpoint.problems) == ("transformers", 65, ())
    assert checkpoint.facts == {
        "step": 3, "epoch": 0.75, "lr": [0.0], "optimizer_step": 3, "scheduler_step": 3, "scheduler_lr": [0.0],
        "base_lr": [5e-05],
    }  # fmt: skip
    assert "training_args.bin" in checkpoint.files
    assert "rng_state.pth" in checkpoint.files


@pytest.mark.parametrize("name", ["sharded", "sharded/model.safetensors.index.json"])
def test_sharded(name: str) -> None:
    checkpoint = only(FIXTURES / name)
    assert (checkpoint.format, checkpoint.tensors, checkpoint.problems) == ("safetensors-sharded", 28, ())
    assert len(checkpoint.files) == 3


def test_accelerate() -> None:
    checkpoint = only(FIXTURES / "accelerate")
    assert (checkpoint.format, checkpoint.tensors, checkpoint.problems) == ("accelerate", 18, ())
    assert len(checkpoint.files) == 6
    assert checkpoint.facts["scale"] == 1024
    assert "step" not in checkpoint.facts  # the one in random_states_0.pkl counts micro-batches


def test_the_folder_of_all_of_them() -> None:
    report = audit(FIXTURES)
    assert report.healthy
    assert len(report.checkpoints) == 4


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if isinstance(node, torch.Tensor):
        yield ".".join(path), node.detach().numpy()
    elif isinstance(node, np.ndarray):
        yield ".".join(path), node
    elif isinstance(node, (dict, list, tuple)):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(value, (*path, str(key)))


@pytest.mark.parametrize("name", TORCH_FILES + SAFETENSORS_FILES)
def test_every_float_is_seen_and_none_is_invented(name: str) -> None:
    """Names, least and greatest values, as the framework's own loader gives them."""
    path = FIXTURES / name
    expected = {
        key: (float(array[np.isfinite(array)].min()), float(array[np.isfinite(array)].max()))
        for key, array in leaves(load(path))
        if array.dtype.kind == "f" and np.isfinite(array).any()
    }
    with LocalSource(str(path)) as source:
        seen = scan(read_contents(source).extents, verify=True)
    assert not seen.problems
    found = {result.tensor.name: (result.low, result.high) for result in seen.tensors if result.low <= result.high}
    assert found.items() <= expected.items()
    assert set(found.values()) == set(expected.values())  # one tensor under several names is reported under the first


MODEL = [
    (LIGHTNING, "state_dict", "net.0.weight"),
    (f"{TRAINER}/model.safetensors", "transformer.h.0.attn.c_attn.weight"),
    ("sharded/model-00002-of-00003.safetensors", "transformer.h.0.mlp.c_proj.weight"),
    ("accelerate/model.safetensors", "2.weight"),
]
OPTIMIZER: list[tuple[Any, ...]] = [
    (LIGHTNING, "optimizer_states", 0, "state", 3, "exp_avg"),
    (f"{TRAINER}/optimizer.pt", "state", 2, "exp_avg_sq"),
    ("accelerate/optimizer.bin", "state", 1, "exp_avg"),
]
BESIDE = [("accelerate/custom_checkpoint_0.pkl", "ema", "weight")]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [*MODEL, *OPTIMIZER, *BESIDE], ids=lambda place: f"{place[0]}:{place[-1]}")
def test_one_planted_value_is_found_and_named(tmp_path: Path, place: tuple[Any, ...], value: float) -> None:
    name, *keys = place
    whole = Path(name).parent if name != LIGHTNING else Path(name)
    shutil.copytree(FIXTURES, tmp_path, dirs_exist_ok=True)
    path = tmp_path / name
    state = load(path)
    target = state
    for key in keys:
        target = target[key]
    target.view(-1)[-1] = value
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    for verify in (True, False):
        checkpoint = only(tmp_path / whole, verify=verify)
        (error,) = (problem for problem in checkpoint.problems if problem.severity == "error")
        assert error.code == ("NT901" if value != value else "NT902")
        assert error.tensor == ".".join(map(str, keys))
        assert error.first_index == tuple(size - 1 for size in target.shape)
        assert (error.nan, error.posinf + error.neginf) == ((1, 0) if value != value else (0, 1))
        if place in OPTIMIZER:
            assert error.role == "optimizer"


@pytest.mark.parametrize("name", TORCH_FILES)
def test_one_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    with LocalSource(str(FIXTURES / name)) as source:
        extents = [extent for extent in read_contents(source).extents if extent.crc32 is not None and extent.size]
    last = extents[-1]
    raw = bytearray((FIXTURES / name).read_bytes())
    raw[last.offset + last.size - 1] ^= 1
    path = tmp_path / Path(name).name
    path.write_bytes(raw)
    assert "NT908" in {problem.code for problem in audit(path).problems}


def test_a_missing_shard(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "sharded", tmp_path / "sharded")
    (tmp_path / "sharded" / "model-00002-of-00003.safetensors").unlink()
    (problem,) = only(tmp_path / "sharded").problems
    assert (problem.code, problem.file) == ("NT907", "model-00002-of-00003.safetensors")
