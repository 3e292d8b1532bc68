"""`nantrap run --bad-samples`: an unmodified script adds the samples that break it, and leaves them out next time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import nantrap
from nantrap.cli import main
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.record.bad_samples import BadSamples

SCRIPT = """
import os, sys, torch, nantrap
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
x[[4, 17], 1] = float("nan")
data = TensorDataset(x)
if os.path.exists("bad-samples.json"):
    data = nantrap.without_samples(data, "bad-samples.json")
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
for (batch,) in DataLoader(data, batch_size=6, shuffle=True, generator=torch.Generator().manual_seed(1)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
print(len(data), "samples")
"""


def rows(*bad: int) -> Tensor:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    x[list(bad), 1] = math.nan
    return x


def train(dataset: Dataset[Any], listed: Path) -> list[dict[str, Any]]:
    settings = RunSettings(run_dir=str(listed.with_name("run")), quiet=True, bad_samples=str(listed), max_skips=20)
    torch.manual_seed(0)
    with attached(settings):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for (batch,) in DataLoader(dataset, batch_size=6):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    folders = sorted(listed.with_name("run").glob("incidents/*/incident.json"))
    return [json.loads(path.read_text()) for path in folders]


@pytest.mark.slow
def test_a_run_and_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NANTRAP_")} | {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "nantrap", "run", "--bad-samples", "bad-samples.json", "train.py"]
    runs = [
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False)
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert [run.stdout for run in runs] == ["24 samples\n", "22 samples\n"]
    assert BadSamples.load(tmp_path / "bad-samples.json").bad == {"dataset": {"bad_input_data": (4, 17)}}
    assert "2 samples added to" in runs[0].stderr
    assert "4 steps, 4 applied (100.0 %), 0 incidents" in runs[1].stderr


def test_samples_below_a_subset_are_added_by_their_own_number(tmp_path: Path) -> None:
    listed = tmp_path / "bad.json"
    (incident,) = train(Subset(TensorDataset(rows(20)), list(range(23, -1, -1))), listed)
    assert incident["dataset_indices"] == [3]
    assert BadSamples.load(listed).bad == {"dataset": {"bad_input_data": (20,)}}


def test_a_second_run_counts_as_the_whole_dataset_does(tmp_path: Path) -> None:
    listed = tmp_path / "bad.json"
    BadSamples({"train.npy": 24}, {"train.npy": {"non_finite": (0, 1)}}).save(listed)
    (incident,) = train(nantrap.without_samples(TensorDataset(rows(20)), listed), listed)  # type: ignore[arg-type]
    assert "the dataset is a WithoutSamples: in the dataset below it the index is 20" in incident["notes"]
    assert BadSamples.load(listed).bad == {"train.npy": {"non_finite": (0, 1), "bad_input_data": (20,)}}


class Files(Dataset[Any]):
    """A dataset that keeps its paths."""

    def __init__(self, folder: Path, x: Tensor) -> None:
        self.samples = [(str(folder / f"{number:02}.png"), 0) for number in range(len(x))]
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor]:
        return (self.x[index],)


def test_a_dataset_of_files_is_listed_by_path(tmp_path: Path) -> None:
    listed = tmp_path / "bad.json"
    dataset = Files(tmp_path, rows(8))
    train(dataset, listed)
    assert BadSamples.load(listed).bad == {str(tmp_path / "08.png"): {"bad_input_data": (0,)}}
    kept = nantrap.without_samples(dataset, listed)
    assert kept.indices == [number for number in range(24) if number != 8]  # type: ignore[union-attr]


def test_a_file_that_is_no_list_is_refused_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    (tmp_path / "other.json").write_text("{}")
    assert main(["run", "--bad-samples", str(tmp_path / "other.json"), str(tmp_path / "train.py")]) == 2
    out, err = capsys.readouterr()
    assert "ran" not in out
    assert "other.json is not a list of bad samples" in err
