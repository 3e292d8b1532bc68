"""An incident's bundle run again: the operation alone, the whole step, in float32, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nantrap
from nantrap.cli import main


class Net(nn.Module):
    """Dropout, a buffer and a softmax, so that state, statistics and random streams all matter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.head(self.drop(self.norm(x))).masked_fill(mask, float("-inf"))
        return scores.softmax(dim=-1)


def build() -> tuple[Net, torch.optim.Optimizer, Any]:
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1), lambda b: model(b["x"], b["mask"]).square().mean()


def failed_run(folder: Path, **policy: Any) -> nantrap.Incident:
    torch.manual_seed(7)
    model, optimizer, loss_fn = build()
    guard = nantrap.Guard(model, optimizer, run_dir=folder, policy=nantrap.Policy(**policy), quiet=True)
    incident = None
    for step in range(4):
        mask = torch.zeros(6, 3, dtype=torch.bool)
        mask[2] = step == 3
        incident = guard.attempt(loss_fn, {"x": torch.randn(6, 4), "mask": mask}).incident
    guard.close()
    assert incident is not None
    assert incident.bundle is not None
    return incident


def test_a_program_that_replaced_the_generator_of_numpy(tmp_path: Path) -> None:
    numpy: Any = np.random  # its declarations lack these two
    kept = numpy.get_bit_generator()
    try:
        numpy.set_bit_generator(np.random.PCG64(5))
        incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", data=True))
        assert not any("diagnosis failed" in note for note in incident.notes)
        assert nantrap.replay(str(incident.bundle), entry=build).reproduced
    finally:
        numpy.set_bit_generator(kept)


def test_the_whole_step_elsewhere(tmp_path: Path) -> None:
    incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", data=True))
    torch.manual_seed(99)  # another process knows nothing of this one's state
    result = nantrap.replay(str(incident.bundle), entry=build)
    assert (result.reproduced, result.mode, result.differences) == (True, "step", ())
    assert result.incident is not None
    assert result.incident.causes[0].slug == "softmax_fully_masked_row"
    assert result.incident.samples == (2,)


def test_the_operation_alone(tmp_path: Path) -> None:
    incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", data=True))
    result = nantrap.replay(str(incident.bundle))
    assert (result.reproduced, result.mode) == (True, "operation")
    assert result.output is not None
    assert result.output.nan == 3


def test_without_permission_no_data_is_written(tmp_path: Path) -> None:
    incident = failed_run(tmp_path, bundle="full")
    names = {path.name for path in Path(str(incident.bundle)).iterdir()}
    assert "batch.safetensors" not in names
    assert "origin.safetensors" not in names
    result = nantrap.replay(str(incident.bundle))
    assert result.reproduced is None
    assert result.differences[0] == (
        "without entry= only the guilty operation could be run, and its inputs were not kept "
        "(Policy(bundle=Bundle(data=True)) allows data in a bundle)"
    )
    with pytest.raises(nantrap.UsageError, match="this bundle has no batch"):
        nantrap.replay(str(incident.bundle), entry=build)


def test_light_is_the_default_and_off_writes_nothing(tmp_path: Path) -> None:
    light = failed_run(tmp_path / "light")
    assert sorted(p.name for p in Path(str(light.bundle)).iterdir()) == [
        "bundle.json", "diagnostic.txt", "incident.json", "report.html",
    ]  # fmt: skip
    torch.manual_seed(7)
    model, optimizer, _ = build()
    guard = nantrap.Guard(model, optimizer, run_dir=tmp_path / "off", policy=nantrap.Policy(bundle="off"), quiet=True)
    guard.attempt(lambda b: model.head(b).mean() * float("nan"), torch.ones(2, 4))
    guard.close()
    assert not (tmp_path / "off" / "incidents").exists()


def test_too_large_is_written_light_and_said(tmp_path: Path) -> None:
    incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", max_bytes=10))
    assert any("more than Bundle(max_bytes=10): written without the state" in note for note in incident.notes)
    assert json.loads((Path(str(incident.bundle)) / "bundle.json").read_text())["kind"] == "light"


def test_another_model_is_refused(tmp_path: Path) -> None:
    incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", data=True))

    def other() -> Any:
        model = nn.Linear(4, 5)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda b: model(b["x"]).mean()

    with pytest.raises(nantrap.FormatError, match="of this model is not in the bundle: it is another model"):
        nantrap.replay(str(incident.bundle), entry=other)


def test_entry_must_make_sense(tmp_path: Path) -> None:
    incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", data=True))
    for entry, words in (
        ("no_colon", "write it as module:function, e.g. train:build"),
        ("no_such_module_here:build", "cannot be imported"),
        ("json:no_such_function", "has no function 'no_such_function'"),
        (lambda: 3, "the entry must return"),
    ):
        with pytest.raises(nantrap.UsageError, match=words):
            nantrap.replay(str(incident.bundle), entry=entry)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    incident = failed_run(tmp_path, bundle=nantrap.Bundle(kind="full", data=True))
    assert main(["replay", str(incident.bundle)]) == 1
    said = capsys.readouterr().out
    assert "recorded: step 3, forward, loss, aten._softmax" in said
    assert "Running aten._softmax again on its recorded inputs gives non-finite values again." in said
    assert main(["replay", str(incident.bundle), "--json", "--fp32"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["mode"], document["reproduced"]) == ("nantrap.replay/1", "operation", True)
    assert main(["replay", str(tmp_path)]) == 2
    assert "no bundle here" in capsys.readouterr().err
