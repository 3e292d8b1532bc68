"""Every reader finds every tensor at its place: compared with what torch itself loads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nantrap.checkpoints.audit.contents import Contents, UnreadableError
from nantrap.checkpoints.audit.files import BytesSource, LocalSource
from nantrap.checkpoints.audit.readers import read_contents

FORMATS = ["torch", "torch-legacy", "pickle"]


def save(value: Any, path: Path, form: str) -> None:
    if form == "torch":
        torch.save(value, path)
    elif form == "torch-legacy":
        torch.save(value, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes(pickle.dumps(value))


def values_in(contents: Contents) -> dict[str, Tensor]:
    """The tensors as the extents say they lie."""
    found = {}
    for extent in contents.extents:
        for tensor in extent.tensors:
            raw = extent.source.read(extent.offset + tensor.offset, tensor.end - tensor.offset)
            dtype = getattr(torch, tensor.dtype.name)
            flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
            found[tensor.name] = flat.as_strided(tensor.shape, tensor.stride)
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_a_whole_training_state(tmp_path: Path, state: dict[str, Any], form: str) -> None:
    path = tmp_path / "a.pt"
    save(state, path, form)
    with LocalSource(str(path)) as source:
        contents = read_contents(source)
        found = values_in(contents)
    assert contents.format == form
    expected = {f"model.{name}": value for name, value in state["model"].items()}
    expected |= {f"ema.{name}": value for name, value in state["ema"].items()}
    for number, entry in state["optimizer"]["state"].items():
        expected |= {f"optimizer.state.{number}.{key}": value for key, value in entry.items()}
    assert found.keys() == expected.keys()
    assert sorted(contents.names) == sorted(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype


@pytest.mark.parametrize("form", FORMATS)
def test_views_layouts_and_wrappers(tmp_path: Path, form: str) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    value = {
        "transposed": base.t(),
        "column": base[:, 2],
        "expanded": torch.tensor([7.0]).expand(3),
        "parameter": nn.Parameter(torch.ones(2, 2)),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(5.0),
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "sparse": torch.eye(3).to_sparse(),
        "list": [torch.tensor([1.0]), (torch.tensor([2.0]),)],
    }
    path = tmp_path / "a.pt"
    save(value, path, form)
    with LocalSource(str(path)) as source:
        found = values_in(read_contents(source))
    for name in ("transposed", "column", "expanded", "parameter", "empty", "scalar"):
        assert torch.equal(found[name], value[name]), name  # type: ignore[arg-type]
    assert found["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["list.0"].tolist() == [1.0]
    assert found["list.1.0"].tolist() == [2.0]
    assert found["sparse"].numel() > 0


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.int8, torch.int64, torch.bool, torch.uint16,
    ],
)  # fmt: skip
def test_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 2).to(dtype)
    torch.save({"t": tensor}, tmp_path / "a.pt")
    save_file({"t": tensor}, tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        with LocalSource(str(tmp_path / name)) as source:
            found = values_in(read_contents(source))["t"]
        assert found.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_tied_weights_are_read_once_and_counted_twice(tmp_path: Path) -> None:
    shared = torch.ones(4, 4)
    torch.save({"embed": shared, "head": shared.detach()}, tmp_path / "a.pt")
    with LocalSource(str(tmp_path / "a.pt")) as source:
        contents = read_contents(source)
    assert [tensor.name for extent in contents.extents for tensor in extent.tensors] == ["embed"]
    assert contents.names == ("embed", "head")


def test_safetensors(tmp_path: Path, state: dict[str, Any]) -> None:
    save_file(state["model"], tmp_path / "a.safetensors", metadata={"format": "pt"})
    with LocalSource(str(tmp_path / "a.safetensors")) as source:
        contents = read_contents(source)
        found = values_in(contents)
    assert contents.format == "safetensors"
    assert not contents.problems
    assert all(torch.equal(found[name], value) for name, value in state["model"].items())


def test_a_whole_model(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    torch.save(model, tmp_path / "whole.pt")
    with LocalSource(str(tmp_path / "whole.pt")) as source:
        found = values_in(read_contents(source))
    assert torch.equal(found["_parameters.weight"], model.weight)


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b"", "NT909", "the file is empty"),
        (b"hello, this is text" * 9, "NT911", "no reader knows a file that begins like this"),
        (b"PK\x03\x04" + b"\0" * 90, "NT909", "no directory at its end"),
        (b"\x80\x02}q\x00(X\x05\x00\x00\x00model", "NT909", "the pickle is not whole"),
        ((1000).to_bytes(8, "little") + b'{"a": 1}', "NT909", "the header should hold 1,000 bytes, and the file has 8"),
        ((8).to_bytes(8, "little") + b'{"a": x}', "NT908", "the header is not JSON"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "NT908", "the header describes tensor a wrongly"),
    ],
)
def test_what_cannot_be_read_says_why(raw: bytes, code: str, words: str) -> None:
    with pytest.raises(UnreadableError, match=words) as caught:
        read_contents(BytesSource(raw, name="x"))
    assert caught.value.problem.code == code


def test_a_zip_of_something_else(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with LocalSource(str(tmp_path / "a.pt")) as source, pytest.raises(UnreadableError, match=r"without data\.pkl"):
        read_contents(source)


def test_a_compressed_zip_is_not_torchs(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}) * 100)
    with LocalSource(str(tmp_path / "a.pt")) as source, pytest.raises(UnreadableError, match="is compressed"):
        read_contents(source)


def test_safetensors_in_front_of_a_cut_are_still_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(100), "b": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-10])
    with LocalSource(str(path)) as source:
        contents = read_contents(source)
        assert list(values_in(contents)) == ["a"]
    assert contents.problems[0].code == "NT909"
    assert contents.problems[0].message.endswith("bytes: 1 tensor is not whole")
    path.write_bytes(path.read_bytes() + b"x" * 30)
    with LocalSource(str(path)) as source:
        assert read_contents(source).problems[0].message == "20 bytes follow after the last tensor"
