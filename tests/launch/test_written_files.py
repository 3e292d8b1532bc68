"""Every way in which a script writes a state: a non-finite one replaces nothing, a good one is written as always."""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

from nantrap import NonFiniteError
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary

NAME, TEMPORARY = "model.pt", "model.tmp"


@dataclass
class State:
    """A state that is an object."""

    weights: dict[str, torch.Tensor]
    epoch: int = 3


def arrays(model: nn.Module) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def in_memory(model: nn.Module) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    return stream


def to_open_file(model: nn.Module) -> None:
    with open(NAME, "wb") as file:
        torch.save(model.state_dict(), file)


def to_opened_path(model: nn.Module) -> None:
    with Path(NAME).open("wb+") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        assert torch.load(file).keys() == model.state_dict().keys()


def unbuffered(model: nn.Module) -> None:
    with open(NAME, "wb", buffering=0) as file:
        torch.save(model.state_dict(), file)


def old_format(model: nn.Module) -> None:
    with open(NAME, "wb") as file:
        torch.save(model.state_dict(), file, _use_new_zipfile_serialization=False)


def bytes_at_once(model: nn.Module) -> None:
    with open(NAME, "wb") as file:
        file.write(in_memory(model).getbuffer())


def bytes_in_pieces(model: nn.Module) -> None:
    stream = in_memory(model)
    stream.seek(0)
    with open(NAME, "wb") as file:
        shutil.copyfileobj(stream, file, 1000)


def bytes_of_path(model: nn.Module) -> None:
    Path(NAME).write_bytes(safetensors.torch.save(model.state_dict()))


def numpy_bytes(model: nn.Module) -> None:
    Path(NAME).write_bytes(safetensors.numpy.save(arrays(model)))


def numpy_file(model: nn.Module) -> None:
    safetensors.numpy.save_file(arrays(model), NAME)


def pickled(model: nn.Module) -> None:
    with open(NAME, "wb") as file:
        pickle.dump({"epoch": 1}, file)
        pickle.dump(arrays(model), file)


def pickled_bytes(model: nn.Module) -> None:
    Path(NAME).write_bytes(pickle.dumps(model))


def compressed(model: nn.Module) -> None:
    with gzip.open(NAME, "wb") as file:
        pickle.dump(model.state_dict(), file)


def archive_of_arrays(model: nn.Module) -> None:
    np.savez("model", **arrays(model))


def one_array(model: nn.Module) -> None:
    with open(NAME, "wb") as file:
        np.save(file, arrays(model)["0.weight"])


def deep(model: nn.Module) -> None:
    torch.save({"a": {"b": {"c": [{"d": {"e": {"net": model.state_dict()}}}]}}}, NAME)


def other_names(model: nn.Module) -> None:
    torch.save({f"p{i}": tensor.half() for i, tensor in enumerate(model.state_dict().values())}, NAME)


def one_vector(model: nn.Module) -> None:
    torch.save(nn.utils.parameters_to_vector(model.parameters()), NAME)


def in_an_object(model: nn.Module) -> None:
    torch.save(State(model.state_dict()), NAME)


def scripted(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(model), NAME)


def scripted_itself(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(model).save(NAME)


def renamed(model: nn.Module) -> None:
    torch.save(model.state_dict(), TEMPORARY)
    assert os.path.getsize(TEMPORARY)
    os.replace(TEMPORARY, NAME)


def renamed_open(model: nn.Module) -> None:
    with tempfile.NamedTemporaryFile("wb", dir=".", delete=False) as file:
        torch.save(model.state_dict(), file)
    Path(file.name).rename(NAME)


def moved(model: nn.Module) -> None:
    descriptor, name = tempfile.mkstemp(dir=".")
    with os.fdopen(descriptor, "wb") as file:
        file.write(in_memory(model).getvalue())
    shutil.move(name, NAME)


def copied(model: nn.Module) -> None:
    Path(TEMPORARY).unlink(missing_ok=True)
    torch.save(model.state_dict(), TEMPORARY)
    assert shutil.copy2(TEMPORARY, NAME) == NAME


def linked(model: nn.Module) -> None:
    """The newest is a link to a file of its own name."""
    place = next(f"epoch-{i}.pt" for i in range(9) if not Path(f"epoch-{i}.pt").exists())
    torch.save(model.state_dict(), place)
    os.symlink(place, "link")
    os.replace("link", NAME)


WAYS = [
    to_open_file, to_opened_path, unbuffered, old_format, bytes_at_once, bytes_in_pieces, bytes_of_path, numpy_bytes,
    numpy_file, pickled, pickled_bytes, compressed, archive_of_arrays, one_array, deep, other_names, one_vector,
    in_an_object, scripted, scripted_itself, renamed, renamed_open, moved, copied, linked,
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's own folder."""
    monkeypatch.chdir(tmp_path)


def trained() -> nn.Module:
    """A model whose state is larger than what Python keeps in memory before it writes, and that is guarded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(4, 40)).square().mean().backward()
    optimizer.step()
    _KEPT[:] = [optimizer]
    return model


_KEPT: list[torch.optim.Optimizer] = []


def poison(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters())[0, 0] = math.nan


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().glob("*") if path.is_file()}


@pytest.mark.parametrize("save", WAYS, ids=lambda way: way.__name__)
def test_a_non_finite_state_replaces_nothing(
    save: Callable[[nn.Module], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with attached(RunSettings(run_dir="run")) as attachment:
        model = trained()
        save(model)
        good = contents()
        poison(model)
        save(model)
        notes = RunSummary.of(attachment).notes
    now = contents()
    assert {name: now[name] for name in good if name != TEMPORARY} == {
        name: data for name, data in good.items() if name != TEMPORARY
    }
    assert any(".nonfinite" in name for name in now)
    assert any(note.startswith("non-finite states were saved beside the files they would have") for note in notes)
    assert "would hold non-finite values" in capsys.readouterr().err


@pytest.mark.parametrize("save", WAYS, ids=lambda way: way.__name__)
def test_a_good_state_is_written_as_without_a_guard(save: Callable[[nn.Module], None]) -> None:
    """As many files of the same size, but for addresses of memory in a pickle; also where a larger file was before."""
    Path(NAME).write_bytes(b"x" * 1_000_000)
    save(trained())
    expected = sorted(len(data) for data in contents().values())
    for path in Path().glob("*"):
        path.unlink()
    Path(NAME).write_bytes(b"x" * 1_000_000)
    with attached(RunSettings(run_dir="run", quiet=True)) as attachment:
        save(trained())
        assert not RunSummary.of(attachment).notes
    found = sorted(len(data) for data in contents().values())
    assert found == pytest.approx(expected, abs=100)


def using_descriptor(file: Any) -> None:
    os.write(file.fileno(), b"abc")


def reading(file: Any) -> None:
    assert file.read() == b""


def from_the_end(file: Any) -> None:
    assert file.seek(0, os.SEEK_END) == 0
    file.write(b"abc")


def growing(file: Any) -> None:
    file.truncate(5)


def skipping(file: Any) -> None:
    file.seek(4)
    file.write(b"d")


def nothing(file: Any) -> None:
    pass


@pytest.mark.parametrize("use", [using_descriptor, reading, from_the_end, growing, skipping, nothing])
@pytest.mark.parametrize("buffering", [-1, 0, 100])
def test_an_opened_file_is_the_one_that_python_opens(use: Callable[[Any], None], buffering: int) -> None:
    results = []
    for guarded in (False, True):
        Path("file").write_bytes(b"0123456789")
        os.chmod("file", 0o640)
        inode = os.stat("file").st_ino
        with attached(RunSettings(run_dir="run", quiet=True)):
            if guarded:
                trained()
            with open("file", "wb+", buffering=buffering) as file:
                assert file.name == "file"
                use(file)
        assert os.stat("file").st_ino == inode
        assert os.stat("file").st_mode & 0o777 == 0o640
        results.append(Path("file").read_bytes())
    assert results[0] == results[1]


def test_a_refused_state_leaves_the_opened_file_as_it_was() -> None:
    with attached(RunSettings(run_dir="run", policy_name="strict", quiet=True)):
        model = trained()
        to_open_file(model)
        good = contents()
        poison(model)
        with pytest.raises(NonFiniteError, match=r"model\.pt was not saved"):
            to_open_file(model)
    assert contents() == good


def test_data_with_nan_are_written_to_an_open_file() -> None:
    with attached(RunSettings(run_dir="run", policy_name="strict", quiet=True)) as attachment:
        poison(trained())
        predictions = {"scores": torch.full((60, 40), math.nan), "loss": torch.tensor(math.nan)}
        for _ in range(2):
            with open("data.pt", "wb") as file:
                torch.save(predictions, file)
            np.savez("data.npz", scores=predictions["scores"].numpy())
        assert not RunSummary.of(attachment).notes
    assert torch.load("data.pt")["scores"].isnan().all()


def test_good_bytes_that_begin_like_bad_ones_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The header of a checkpoint is the same; the values come later. What began like a bad state is compared."""
    with attached(RunSettings(run_dir="run")) as attachment:
        model = trained()
        good = in_memory(model)
        Path(NAME).write_bytes(b"before")
        poison(model)
        in_memory(model)  # never written
        good.seek(0)
        with open(NAME, "wb") as file:
            shutil.copyfileobj(good, file, 1000)
        notes = RunSummary.of(attachment).notes
    assert Path(NAME).read_bytes() == good.getvalue()
    assert sorted(contents()) == [NAME]
    assert notes == ("a non-finite state was turned into bytes 1 time; nantrap did not see which file got them",)
    assert "would hold" not in capsys.readouterr().err


def test_a_state_that_is_saved_in_two_ways_is_told_once_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The bytes of the open file are those that were made in memory before: they are not judged a second time."""
    with attached(RunSettings(run_dir="run")) as attachment:
        model = trained()
        to_open_file(model)
        good = contents()[NAME]
        poison(model)
        in_memory(model)
        to_open_file(model)
        notes = RunSummary.of(attachment).notes
    assert contents()[NAME] == good
    said = capsys.readouterr().err
    assert said.count("model.pt would hold non-finite values") == 1
    assert "model.pt is being saved" not in said
    assert not any(note.startswith("files that hold a non-finite state") for note in notes)


def test_a_new_file_is_written_as_asked_and_replaces_no_good_one_later(capsys: pytest.CaptureFixture[str]) -> None:
    with attached(RunSettings(run_dir="run")) as attachment:
        model = trained()
        poison(model)
        torch.save(model.state_dict(), "new.pt")
        torch.save(model.state_dict(), "new.pt")  # nothing good is there
        assert RunSummary.of(attachment).notes == ("files that hold a non-finite state: new.pt",)
    assert sorted(contents()) == ["new.pt"]
    assert "nantrap: new.pt is being saved with non-finite values: 0.weight; it replaces" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_does_not_empty_the_file_of_its_parent() -> None:
    Path("file").write_bytes(b"before")
    with attached(RunSettings(run_dir="run", quiet=True)):
        trained()
        file = open("file", "wb")  # noqa: SIM115
        child = os.fork()
        if child == 0:
            file.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert Path("file").read_bytes() == b"before"
        file.write(b"after")
        file.close()
    assert Path("file").read_bytes() == b"after"


def test_builtin_functions_stay_functions_in_a_class() -> None:
    """A function in Python would become a method there."""
    with attached(RunSettings(run_dir="run", quiet=True)):
        files: Any = type("Files", (), {"open": open, "dumps": pickle.dumps})()
        assert pickle.loads(files.dumps([1])) == [1]
        assert pickle.loads(pickle.dumps(pickle.dumps)) is pickle.dumps
        with files.open("file", "wb") as file:
            file.write(b"1")
    assert files.open is not open
    assert files.open.__name__ == "open"
