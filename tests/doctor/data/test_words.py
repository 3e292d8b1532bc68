"""What the data check says is true: of cut files, of cells that say NaN, of what was not looked at at all."""

from __future__ import annotations

import io
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from nantrap.cli import main
from nantrap.doctor.data import DataOptions, DataReport, check_data
from nantrap.errors import UsageError


def messages(report: DataReport) -> list[str]:
    return [finding.message for finding in report.findings]


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


ARRAY = npy(np.arange(40.0).reshape(10, 4))
NPZ = io.BytesIO()
np.savez(NPZ, x=np.arange(40.0))
CUT = {
    "a.npy": (ARRAY[:3], "the file is cut inside of its header"),
    "b.npy": (ARRAY[:7], "the file is cut inside of its header"),
    "c.npy": (ARRAY[:60], "the file is cut inside of its header"),
    "d.npy": (ARRAY[:-8], "the file is cut: the header promises 320 bytes of data, 312 are there"),
    "e.npy": (b"<html>404</html>", "not a NumPy array: it does not begin with \\x93NUMPY"),
    "a.npz": (NPZ.getvalue()[:-30], "the zip archive has no directory at its end: the file is cut short"),
    "b.npz": (b"<html>404</html>", "not an .npz archive: it does not begin with PK"),
    "a.arrow": (b"ARROW1\0\0zz", "the Arrow file has no directory at its end: it is cut or damaged"),
    "a.safetensors": (b"\0" * 8, "not a file of safetensors: no header of that kind at its beginning"),
    "a.pt": (b"hello there", "not a file of torch.save: no header of that kind at its beginning"),
}


@pytest.mark.parametrize("name", CUT)
def test_a_cut_or_foreign_file(name: str, tmp_path: Path) -> None:
    data, words = CUT[name]
    (tmp_path / name).write_bytes(data)
    assert messages(check_data(tmp_path)) == [words]


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["nan"], "1 sample with 1 NaN: 5"),
        (["NaN", "-nan"], "2 samples with 2 NaN: 5, 6"),
        ([""], "1 sample with 1 missing value: 5"),
        (["n/a", "", "1.#QNAN"], "3 samples with 1 NaN, 2 missing values: 5, 6, 7"),
        (["inf", "nan", "NA"], "3 samples with 1 NaN, 1 Inf, 1 missing value: 5, 6, 7"),
    ],
)
def test_a_cell_that_says_nan_is_not_empty(cells: list[str], words: str, quote: str, tmp_path: Path) -> None:
    rows = [f"{number},{number * 0.5}" for number in range(40)]
    for offset, cell in enumerate(cells):
        rows[5 + offset] = f"{quote}{5 + offset}{quote},{cell}"
    (tmp_path / "a.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    assert messages(check_data(tmp_path)) == [words]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([10], "1 sample outside 0..9 (up to 10): 0"),
        ([-1], "1 sample outside 0..9 (down to -1): 0"),
        ([12, -3], "2 samples outside 0..9 (from -3 to 12): 0, 1"),
    ],
)
def test_an_ignored_label_is_not_out_of_range(bad: list[int], words: str, tmp_path: Path) -> None:
    labels = np.arange(40) % 10
    labels[: len(bad)], labels[20] = bad, -100
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(40, 4)), labels=labels)
    assert messages(check_data(tmp_path, options=DataOptions(classes=10))) == [words]


def test_shapes_in_words(tmp_path: Path) -> None:
    rows = [torch.randn(3, 8) for _ in range(40)]
    rows[6], rows[7] = torch.randn(3, 9), torch.randn(8)
    torch.save(rows, tmp_path / "a.pt")
    assert messages(check_data(tmp_path)) == ["2 samples of another shape (n×9, most are n×8): 6, 7"]
    (tmp_path / "a.pt").unlink()
    (tmp_path / "b.csv").write_text("a,b\n" + "".join(f"{n},{2 * n}\n" for n in range(30)) + "1,2,3\n")
    assert messages(check_data(tmp_path)) == ["1 sample with another number of cells (most have 2): 30"]
    (tmp_path / "b.csv").write_text("a,b\n0.1")  # cut in its only row: no row is usual
    assert messages(check_data(tmp_path)) == []


class Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemExit('the pickle was run')",)


def test_what_a_pickle_would_run_is_named(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(40.0), "y": Runs()}, tmp_path / "mixed.pt")
    report = check_data(tmp_path / "mixed.pt")
    assert report.clean
    assert report.notes == (
        f"{tmp_path / 'mixed.pt'}: loading it would run builtins.exec; its tensors were read without that",
    )
    torch.save({"y": Runs()}, tmp_path / "only.pt")
    assert messages(check_data(tmp_path / "only.pt")) == [
        "no tensor in it can be read: loading it would run builtins.exec, which is not done here"
    ]


def test_a_file_without_numbers_does_not_pass_for_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert main(["data", "a.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "note: a.jsonl holds no numbers: only whether it can be read was checked" in out
    assert "1 file read, 2 samples, 32 bytes: nothing found" in out
    Path("b.jsonl").write_text('{"text": "one"}\n')
    assert check_data(".").notes == ("./a.jsonl, ./b.jsonl hold no numbers: only whether they can be read was checked",)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("made_for_words")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_samples_without_an_array(made: Any) -> None:
    made.empty = []
    assert messages(check_data("made_for_words:empty")) == ["the dataset is empty"]
    made.sparse = [torch.diag(torch.arange(5.0) + number).to_sparse() for number in range(20)]
    assert messages(check_data("made_for_words:sparse")) == []
    made.meta = [torch.empty(3, device="meta") if number == 4 else torch.randn(3) for number in range(20)]
    report = check_data("made_for_words:meta")
    assert messages(report) == ["1 sample raised NotImplementedError: Cannot copy out of meta tensor; no data!"]
    assert report.findings[0].indices == (4,)


def test_a_loader_is_checked_sample_by_sample(made: Any) -> None:
    x = torch.randn(64, 20)
    x[9, 0] = float("nan")
    made.loader = DataLoader(TensorDataset(x, torch.arange(64) % 3), batch_size=8, shuffle=True)
    report = check_data("made_for_words:loader")
    assert [(each.field, each.indices) for each in report.findings] == [("0", (9,))]
    assert report.samples == 64


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("text", "gave an object of type str"),
        ({"train": [1], "test": [2]}, "gave a dict with the keys train, test; a dataset has numbered samples"),
        (5, "gave an object of type int"),
    ],
)
def test_what_is_no_dataset(value: Any, words: str, made: Any) -> None:
    made.value = value
    with pytest.raises(UsageError, match=words):
        check_data("made_for_words:value")


def test_a_module_is_named_without_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train_it.py").write_text("data = [1.0]\n")
    with pytest.raises(UsageError, match=r"train_it.py:data: a module is named without .py: train_it:data"):
        check_data("train_it.py:data")


def test_a_member_that_is_cut(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", ARRAY[:7])
        archive.writestr("y.npy", ARRAY)
    assert messages(check_data(tmp_path)) == ["member x: the file is cut inside of its header"]
