"""`bad_samples=`: incidents say which samples are on the list, and add those that are to blame."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import nantrap
from nantrap.cli import main
from nantrap.errors import FormatError, UsageError
from nantrap.guard.watching.sample_list import SampleList
from nantrap.record.bad_samples import BadSamples

SIZE = 32


class Numbered(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of an array with their numbers."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "index": index}


def rows(*bad: int, value: float = math.nan) -> Tensor:
    x = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0))
    x[list(bad), 1] = value
    return x


def train(dataset: Any, *, loss: Any = None, epochs: int = 1, **options: Any) -> nantrap.Guard:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    chosen = loss or (lambda model, x: model(x).square().mean())
    options = {"policy": nantrap.Policy(max_consecutive_skips=50), "quiet": True, **options}
    guard = nantrap.Guard(model, optimizer, **options)
    for _ in range(epochs):
        for batch in DataLoader(dataset, batch_size=8):
            guard.attempt(lambda batch: chosen(model, batch["x"]), batch)
    return guard


def test_from_the_data_to_a_run_without_the_bad_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(rows(5, 20), "train.pt")
    assert main(["data", "train.pt", "--quarantine", "bad-samples.json"]) == 1
    dataset = Numbered(rows(5, 20))
    guard = train(dataset, bad_samples="bad-samples.json")
    assert guard.tally.incidents == 2
    incident = guard.last_incident
    assert incident is not None
    assert incident.dataset_indices == (20,)
    assert "sample 20 is on the list bad-samples.json; nantrap.without_samples leaves it out" in incident.notes
    clean = train(nantrap.without_samples(dataset, "bad-samples.json"), bad_samples="bad-samples.json")
    assert (clean.tally.attempted, clean.tally.incidents) == (4, 0)


def test_what_the_guard_finds_is_left_out_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    dataset = Numbered(rows(3, 30))
    guard = train(dataset, bad_samples=path)
    assert BadSamples.load(path).bad == {"dataset": {"bad_input_data": (3, 30)}}
    assert guard.last_incident is not None
    added = f"1 sample added to the list {path}; nantrap.without_samples leaves it out next time"
    assert added in guard.last_incident.notes
    assert guard.summary().endswith(
        f"2 samples added to {path}: leave out with nantrap.without_samples(dataset, {str(path)!r})"
    )
    kept = nantrap.without_samples(dataset, path)
    assert train(kept, bad_samples=path).tally.incidents == 0
    assert nantrap.without_samples(dataset, path, rules=["bad_input_data"]).indices == kept.indices  # type: ignore[union-attr]


def test_a_sample_that_breaks_the_loss_is_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    x = rows()
    x[11] = 0.0

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) / x.norm(dim=1, keepdim=True)).square().mean()

    guard = train(Numbered(x), loss=loss, bad_samples=path, epochs=2)
    assert BadSamples.load(path).bad == {"dataset": {"division_by_zero": (11,)}}
    assert guard.last_incident is not None
    assert any(note.startswith("sample 11 is on the list") for note in guard.last_incident.notes)


def test_a_run_that_diverges_blames_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=1e18), bad_samples=path, quiet=True)
    for batch in [*DataLoader(Numbered(rows()), batch_size=8)] * 2:
        try:
            guard.attempt(lambda batch: model(batch["x"]).pow(4).mean(), batch)
        except nantrap.NonFiniteError:
            break
    assert guard.tally.incidents
    assert not path.exists()


def test_the_loop_may_tell_the_indices(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    model = nn.Linear(4, 2)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), bad_samples=path, quiet=True)
    guard.set_position(epoch=0, samples=torch.tensor([40, 41, 42, 43]))
    outcome = guard.attempt(lambda x: model(x).square().mean(), rows(2)[:4])
    assert outcome.incident is not None
    assert (outcome.incident.samples, outcome.incident.dataset_indices) == ((2,), (42,))
    guard.set_position(epoch=0)
    again = guard.attempt(lambda x: model(x).square().mean(), rows(2)[:4])
    assert again.incident is not None
    assert again.incident.dataset_indices == ()
    with pytest.raises(UsageError, match=r"set_position\(samples=\['a'\]\): expected whole numbers"):
        guard.set_position(samples=["a"])  # type: ignore[list-item]


def test_a_batch_that_is_refused_before_the_forward_pass(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    guard = train(Numbered(rows(9)), bad_samples=path, policy=nantrap.Policy(batches=nantrap.BatchChecks(finite=True)))
    assert guard.tally.incidents == 1
    assert BadSamples.load(path).bad == {"dataset": {"bad_input_data": (9,)}}


def test_a_list_about_other_data(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    BadSamples({"small.npy": 4}).save(path)
    guard = train(Numbered(rows(9)), bad_samples=path)
    assert guard.last_incident is not None
    assert f"{path} is about other data: it has no sample 9" in guard.last_incident.notes
    assert BadSamples.load(path) == BadSamples({"small.npy": 4})


def test_which_file_the_dataset_reads(tmp_path: Path) -> None:
    path = tmp_path / "bad-samples.json"
    BadSamples({"val.npy": 4, "train.npy": SIZE}).save(path)
    train(Numbered(rows(2)), bad_samples=SampleList(path, file="train.npy"))
    assert BadSamples.load(path).bad == {"train.npy": {"bad_input_data": (2,)}}
    with pytest.raises(UsageError, match=r"test.npy is not in .*; it has val.npy, train.npy"):
        SampleList(path, file="test.npy")


def test_a_list_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "bad-samples.json"
    with pytest.warns(RuntimeWarning, match=r"bad-samples.json cannot be written: No such file.*Training continues"):
        guard = train(Numbered(rows(2, 20)), bad_samples=path)
    assert (guard.tally.attempted, guard.tally.incidents) == (4, 2)
    assert guard.last_incident is not None
    assert any("could not be added" in note for note in guard.last_incident.notes)


def test_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(FormatError, match="is not a list of bad samples"):
        train(Numbered(rows()), bad_samples=tmp_path / "other.json")
    with pytest.raises(UsageError, match="bad_samples=3: expected the path of a list"):
        train(Numbered(rows()), bad_samples=3)
