"""Which samples of the dataset a bad batch was made of."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset

from nantrap.incident import Incident
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings


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
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for batch in list(loader) if ahead else loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert loop.last_incident is not None
    return loop.last_incident


@pytest.mark.parametrize("options", [{"shuffle": True}, {"num_workers": 2}, {"batch_size": 1, "shuffle": True}])
def test_the_sample_is_named_by_its_index_in_the_data_set(options: dict[str, object], tmp_path: Path) -> None:
    incident = incident_of(DataLoader(Numbers(), **{"batch_size": 8, **options}), tmp_path)  # type: ignore[arg-type]
    assert incident.dataset_indices == (23,)


def test_a_loader_that_is_read_ahead_is_not_confused(tmp_path: Path) -> None:
    incident = incident_of(DataLoader(Numbers(), batch_size=8), tmp_path, ahead=True)
    assert incident.dataset_indices == (23,)


class Wide(Numbers):
    """The same, with rows wide enough that freed memory is used again."""

    def __getitem__(self, index: int) -> Tensor:
        return super().__getitem__(index).repeat(171)[:512].double()


def ways(size: int = 4) -> dict[str, Callable[[], Iterator[Tensor]]]:
    """Batches that are not what the loader gave: copies, parts, other orders, another epoch."""

    def loader(**options: Any) -> DataLoader[Tensor]:
        torch.manual_seed(1)
        return DataLoader(Wide(), **{"batch_size": size, "shuffle": True, **options})

    def persistent() -> Iterator[Tensor]:
        kept = loader(num_workers=2, persistent_workers=True, shuffle=False)
        yield from itertools.islice(kept, 1)
        yield from kept

    return {
        "copied": lambda: (x.float() for x in loader()),
        "permuted": lambda: (x[torch.randperm(len(x))] for x in loader()),
        "flipped": lambda: (x.flip(0) for x in loader()),
        "cut": lambda: (half for x in loader(batch_size=8) for half in (x[4:], x[:4])),
        "disordered": lambda: iter(loader(num_workers=2, in_order=False)),
        "persistent": persistent,
    }


@pytest.mark.parametrize("way", ways())
def test_an_index_is_right_or_absent(way: str, tmp_path: Path) -> None:
    model = nn.Linear(512, 1).double()
    found = []
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        for batch in ways()[way]():
            optimizer.zero_grad()
            model(batch.double()).sum().backward()
            optimizer.step()
            found += [loop.last_incident for loop in attachment.registry if loop.refused]
    assert found
    assert all(incident is not None and incident.dataset_indices in ((), (23,)) for incident in found)
    if way in ("persistent",):
        assert all(incident is not None and incident.dataset_indices == (23,) for incident in found)


def test_a_copy_of_a_batch_is_recognised_by_its_values(tmp_path: Path) -> None:
    """As `x.to(device)` makes one, after which nothing else refers to what the loader gave."""
    incident = position_of(lambda batch: batch.double().float(), tmp_path)
    assert incident.dataset_indices == (23,)
    assert (incident.epoch, incident.batch) == (0, 2)


def test_a_moved_batch_is_to_blame_and_not_a_mask(tmp_path: Path) -> None:
    """`x = x.to(device)` in the loop: what the model gets is the batch, although the loop assigned it again."""
    incident = position_of(lambda batch: batch.to("cpu"), tmp_path)
    assert incident.cause is not None
    assert (incident.cause.slug, incident.cause.proven, incident.samples) == ("bad_input_data", True, (7,))


def test_what_the_loop_makes_of_finite_data_is_not_blamed_on_the_data(tmp_path: Path) -> None:
    incident = position_of(lambda batch: batch / (batch.max() - 7), tmp_path, bad=False)
    assert incident.step == 0
    assert incident.cause is not None
    assert (incident.phase, incident.cause.slug) == ("forward", "division_by_zero")


def test_a_batch_that_was_scaled_is_known_by_its_bad_row(tmp_path: Path) -> None:
    """What the loader gave is bad in the same row."""
    incident = position_of(lambda batch: batch / 40, tmp_path)
    assert incident.dataset_indices == (23,)
    assert (incident.epoch, incident.batch) == (0, 2)
    assert incident.cause is not None
    assert (incident.cause.slug, incident.cause.proven) == ("bad_input_data", True)


def test_a_batch_that_was_scaled_and_reversed_is_followed_back_to_its_loader(tmp_path: Path) -> None:
    incident = position_of(lambda batch: batch.flip(0) / 40, tmp_path)
    assert incident.dataset_indices == (23,)
    assert (incident.epoch, incident.batch) == (0, 2)


def test_a_scaled_batch_that_was_read_ahead_has_no_position(tmp_path: Path) -> None:
    incident = position_of(lambda batch: batch / 40, tmp_path, ahead=True)
    assert (incident.epoch, incident.batch, incident.dataset_indices) == (None, None, ())


def position_of(
    change: Callable[[Tensor], Tensor], tmp_path: Path, *, ahead: bool = False, bad: bool = True
) -> Incident:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        loader = DataLoader(Numbers() if bad else Subset(Numbers(), range(16)), batch_size=8)
        for batch in list(loader) if ahead else loader:
            batch = change(batch)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert loop.last_incident is not None
    return loop.last_incident


def test_a_stream_has_no_indices(tmp_path: Path) -> None:
    incident = incident_of(DataLoader(Stream(), batch_size=8), tmp_path)
    assert incident.dataset_indices == ()
    assert incident.samples == (7,)


class Short(Dataset[Tensor]):
    """Four samples."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), float(index))


def epochs_of(loaders: Callable[[], Iterator[Any]], tmp_path: Path) -> list[int]:
    """The epoch of each step, by the journal."""
    model = nn.Linear(3, 1)
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for loader in loaders():
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
    lines = map(json.loads, (tmp_path / "journal-r0.jsonl").read_text().splitlines())
    return [line["epoch"] for line in lines if "action" in line]


def test_a_new_dataset_in_the_memory_of_an_old_one_begins_at_epoch_0(tmp_path: Path) -> None:
    """Python gives the `id` of an object that is gone to the next one of its size."""

    def loaders() -> Iterator[Any]:
        for _ in range(6):
            yield DataLoader(Short(), batch_size=4)

    assert epochs_of(loaders, tmp_path) == [0] * 6


def test_epochs_of_a_list_are_counted_by_its_loader(tmp_path: Path) -> None:
    def loaders() -> Iterator[Any]:
        data = [torch.full((3,), float(index)) for index in range(4)]
        loader: DataLoader[Tensor] = DataLoader(data, batch_size=4)  # type: ignore[arg-type]
        yield from (loader, loader, DataLoader(list(data), batch_size=4))  # type: ignore[arg-type]

    assert epochs_of(loaders, tmp_path) == [0, 1, 0]


def test_a_new_loader_of_the_same_dataset_is_the_next_epoch(tmp_path: Path) -> None:
    def loaders() -> Iterator[Any]:
        data = Short()
        for _ in range(3):
            yield DataLoader(data, batch_size=4)

    assert epochs_of(loaders, tmp_path) == [0, 1, 2]


def test_a_sampler_that_was_told_its_epoch_is_believed(tmp_path: Path) -> None:
    """As a script does that resumes: `sampler.set_epoch(7)`."""

    def loaders() -> Iterator[Any]:
        data = Short()
        sampler: Any = DistributedSampler(data, num_replicas=1, rank=0)
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        yield loader
        for epoch in (7, 8):
            sampler.set_epoch(epoch)
            yield loader
        yield loader  # not told: counted

    assert epochs_of(loaders, tmp_path) == [0, 7, 8, 9]


@pytest.mark.parametrize("guilty", [0, 1])
def test_the_batch_of_the_micro_batch_in_which_it_began(guilty: int, tmp_path: Path) -> None:
    """A step of two batches ends with the second one; the first one may be at fault."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    data = torch.ones(8, 3)
    data[4 * guilty, 0] = math.nan
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for number, batch in enumerate(DataLoader(data, batch_size=4)):  # type: ignore[arg-type]
            (model(batch).sum() / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        (loop,) = attachment.registry
    assert loop.last_incident is not None
    assert (loop.last_incident.epoch, loop.last_incident.batch) == (0, guilty)
    notes = ("it began in micro-batch 1 of 2", "micro-batch 2 left out, the others stay")
    assert notes[guilty] in loop.last_incident.notes


class Unlabelled(Dataset[tuple[Tensor, Tensor]]):
    """Sample 23 is an empty record without labels; the training leaves missing labels out."""

    def __init__(self, labels: int) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 23:
            return torch.zeros(3), torch.full((self.labels,), math.nan)
        return torch.full((3,), float(index + 1)), torch.zeros(self.labels)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_missing_label_in_the_row_that_the_program_spoils_is_no_bad_input(labels: int, tmp_path: Path) -> None:
    """The batch is bad in the same row as the input, and the input was not made of what is bad."""
    torch.manual_seed(0)
    model = nn.Linear(3, labels)
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)) as attachment:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for x, y in DataLoader(Unlabelled(labels), batch_size=8):
            optimizer.zero_grad()
            rows = x.numpy()
            with numpy.errstate(invalid="ignore"):
                shares = rows / rows.sum(axis=1, keepdims=True)  # 0/0 in the empty record
            out = model(torch.from_numpy(shares))
            (out.square().mean() + (out - y)[~y.isnan()].square().mean()).backward()
            optimizer.step()
        (loop,) = attachment.registry
    incident = loop.last_incident
    assert incident is not None
    assert all(not cause.proven for cause in incident.causes)
