"""Which samples of the data set a bad batch was made of."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from nantrap.incident import Incident
from nantrap.launch.attach import attached
from nantrap.launch.settings import Settings


class Numbers(Dataset[Tensor]):
    """40 samples, one of which is bad."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), math.nan if index == 23 else float(index))


class Stream(IterableDataset[Tensor]):
    """The same without indices."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        return (Numbers()[index] for index in range(40))


def incident_of(loader: DataLoader[Tensor], tmp_path: Path, *, ahead: bool = False) -> Incident:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    with attached(Settings(run_dir=str(tmp_path), quiet=True)) as attachment:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for batch in list(loader) if ahead else loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        (loop,) = attachment.loops
    assert loop.last_incident is not None
    return loop.last_incident


@pytest.mark.parametrize("options", [{"shuffle": True}, {"num_workers": 2}, {"batch_size": 1, "shuffle": True}])
def test_the_sample_is_named_by_its_index_in_the_data_set(options: dict[str, object], tmp_path: Path) -> None:
    incident = incident_of(DataLoader(Numbers(), **{"batch_size": 8, **options}), tmp_path)  # type: ignore[arg-type]
    assert incident.dataset_indices == (23,)


def test_a_loader_that_is_read_ahead_is_not_confused(tmp_path: Path) -> None:
    incident = incident_of(DataLoader(Numbers(), batch_size=8), tmp_path, ahead=True)
    assert incident.dataset_indices == (23,)


def test_a_stream_has_no_indices(tmp_path: Path) -> None:
    incident = incident_of(DataLoader(Stream(), batch_size=8), tmp_path)
    assert incident.dataset_indices == ()
    assert incident.samples == (7,)
