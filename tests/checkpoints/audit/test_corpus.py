# ruff: noqa: E501
"""What people really save is never called unsafe, whichever Python, protocol and library wrote it."""

from __future__ import annotations

import argparse
import io
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from nantrap.checkpoints.audit.files import BytesSource
from nantrap.checkpoints.audit.readers import read_contents
from nantrap.checkpoints.audit.trust import Imports

FIXTURES = Path(__file__).parent / "fixtures"


def imports_of(raw: bytes) -> Imports:
    return read_contents(BytesSource(raw, name="x")).imports


def test_what_five_pythons_and_four_libraries_wrote() -> None:
    """130 kinds of objects, Python 3.10 to 3.13 (3.11.2 and 3.11.7), protocols 2 to 5; OmegaConf, Lightning, ..."""
    count = 0
    with tarfile.open(FIXTURES / "saved-by-people.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            imports = imports_of(file.read())
            assert not imports.run, (member.name, imports.run)
            count += 1
    assert count > 500


def test_what_eight_frameworks_wrote() -> None:
    """DeepSpeed, timm, wandb, hydra, OmegaConf, Lightning, transformers, Accelerate: none is refused.

    Written by `things_frameworks_save.py` under Python 3.10 to 3.13, protocols 2 to 5.
    """
    counts: dict[str, int] = {}
    with tarfile.open(FIXTURES / "saved-by-frameworks.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            imports = imports_of(file.read())
            assert not imports.run, (member.name, imports.run)
            assert not imports.unclear, (member.name, imports.unclear)
            framework = member.name.partition("/")[2].partition("-")[0]
            counts[framework] = counts.get(framework, 0) + 1
    assert sorted(counts) == [
        "accelerate", "deepspeed", "hydra", "lightning", "omegaconf", "timm", "transformers", "wandb",
    ]  # fmt: skip
    assert sum(counts.values()) > 300


def test_what_this_python_writes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("things_people_save.py")
    subprocess.run(
        [sys.executable, "-W", "ignore", str(program), str(tmp_path)], timeout=120, check=True, capture_output=True
    )
    files = list(tmp_path.iterdir())
    assert len(files) > 400
    for path in files:
        imports = imports_of(path.read_bytes())
        assert not imports.run, (path.name, imports.run)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def optimizers() -> Iterator[tuple[str, Any]]:
    for name, kind in vars(torch.optim).items():
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            net = model()
            parameters = [p for p in net.parameters() if p.ndim == 2 or name != "Muon"]
            optimizer = kind(parameters)  # type: ignore[call-arg]
            if name != "SparseAdam":
                net(torch.randn(5, 3)).square().mean().backward()
                optimizer.step(lambda: torch.zeros(()))  # type: ignore[arg-type, return-value]
            yield name, {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "object": optimizer}


def schedulers() -> Iterator[tuple[str, Any]]:
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1, momentum=0.9)
    made = [
        schedules.StepLR(optimizer, 3), schedules.MultiStepLR(optimizer, [1, 2]), schedules.ExponentialLR(optimizer, 0.9),
        schedules.CosineAnnealingLR(optimizer, 5), schedules.CosineAnnealingWarmRestarts(optimizer, 5),
        schedules.ReduceLROnPlateau(optimizer), schedules.OneCycleLR(optimizer, 0.1, total_steps=10),
        schedules.LinearLR(optimizer), schedules.ConstantLR(optimizer), schedules.PolynomialLR(optimizer),
        schedules.SequentialLR(optimizer, [schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 2)], [2]),
        schedules.ChainedScheduler([schedules.LinearLR(optimizer), schedules.StepLR(optimizer, 2)]),
    ]  # fmt: skip
    for scheduler in made:
        yield type(scheduler).__name__, {"state": scheduler.state_dict(), "object": scheduler}


def others() -> Iterator[tuple[str, Any]]:
    yield "whole model", model()
    yield "attention", nn.TransformerEncoderLayer(8, 2)
    yield "scaler", torch.amp.GradScaler("cpu")
    yield "random", {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "new": np.random.default_rng(1)}
    arrays = {
        "float": np.arange(3.0),
        "scalar": np.float64(1),
        "text": np.array(["a"]),
        "object": np.array([{}], dtype=object),
    }
    yield "arrays", {**arrays, "masked": np.ma.array([1, 2], mask=[False, True]), "type": np.float32, "ufunc": np.add}
    yield (
        "torch",
        {"dtype": torch.float32, "device": torch.device("cpu"), "size": torch.Size([1]), "version": torch.__version__},
    )
    yield (
        "tensors",
        {
            "parameter": nn.Parameter(torch.ones(2)),
            "sparse": torch.eye(2).to_sparse(),
            "meta": torch.ones(2, device="meta"),
        },
    )
    yield (
        "timm",
        {"state_dict": model().state_dict(), "args": argparse.Namespace(lr=0.1, path=Path("x")), "metric": 0.5},
    )
    yield "distribution", torch.distributions.Normal(torch.zeros(1), torch.ones(1))
    yield "subset", torch.utils.data.Subset([1, 2, 3], [0])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_what_torch_users_save(form: str) -> None:
    for name, value in (*optimizers(), *schedulers(), *others()):
        buffer = io.BytesIO()
        if form == "pickle":
            buffer.write(pickle.dumps(value))
        else:
            torch.save(value, buffer, _use_new_zipfile_serialization=form == "zip")
        imports = imports_of(buffer.getvalue())
        assert not imports.run, (name, imports.run)
