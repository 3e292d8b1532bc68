"""Bundles: written whole or not at all, never overwritten, verified when read, thinned out, nothing unpickled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from nantrap import FormatError, Incident
from nantrap.record import Material, read_bundle, write_bundle
from nantrap.record.structure import flatten, unflatten

INCIDENT = Incident(step=1204, rank=0, phase="forward", module="attn", op="aten._softmax", loss=float("nan"))


def material() -> Material:
    return Material({"state": {"parameter.w": torch.arange(4.0)}}, {"loss_factor": 1.0})


def test_round_trip(tmp_path: Path) -> None:
    path = write_bundle(tmp_path, INCIDENT, text="error[NT203]: ...", material=material())
    assert path == tmp_path / "incidents" / "001204-r0"
    assert sorted(p.name for p in path.iterdir()) == [
        "bundle.json", "diagnostic.txt", "incident.json", "replay.json", "state.safetensors",
    ]  # fmt: skip
    bundle = read_bundle(path)
    assert (bundle.kind, bundle.incident.op, bundle.incident.bundle) == ("full", "aten._softmax", str(path))
    assert torch.equal(bundle.tensors("state")["parameter.w"], torch.arange(4.0))
    assert bundle.tensors("batch") == {}
    assert read_bundle(path / "incident.json").path == path


def test_a_second_failure_at_the_same_step_does_not_overwrite(tmp_path: Path) -> None:
    first = write_bundle(tmp_path, INCIDENT, text="one")
    second = write_bundle(tmp_path, INCIDENT, text="two")
    assert second.name == "001204-r0-2"
    assert (first / "diagnostic.txt").read_text() == "one\n"


def test_a_bad_night_does_not_fill_the_disk(tmp_path: Path) -> None:
    for step in range(30):
        path = write_bundle(tmp_path, Incident(step=step), text="")
        os.utime(path, ns=(step, step))
    names = sorted(p.name for p in (tmp_path / "incidents").iterdir())
    assert len(names) == 20
    assert names[:5] == [f"{step:06d}-r0" for step in range(5)], "the first ones tell how it began"
    assert names[-1] == "000029-r0"


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    broken = Material({"state": {"w": object()}}, {})  # type: ignore[dict-item]
    with pytest.raises(AttributeError):
        write_bundle(tmp_path, INCIDENT, text="", material=broken)
    assert list((tmp_path / "incidents").iterdir()) == []


def test_damage_is_found(tmp_path: Path) -> None:
    path = write_bundle(tmp_path, INCIDENT, text="", material=material())
    data = bytearray((path / "state.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "state.safetensors").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_bundle(path)
    assert str(caught.value) == (
        f"{path / 'state.safetensors'}: its hash differs from the one in bundle.json; the file is damaged"
    )


def test_missing_and_foreign(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read_bundle(tmp_path)
    assert str(caught.value).endswith("no bundle here (bundle.json is missing); give the folder of an incident")
    path = write_bundle(tmp_path, INCIDENT, text="")
    (path / "diagnostic.txt").unlink()
    with pytest.raises(FormatError) as caught:
        read_bundle(path)
    assert str(caught.value) == f"{path}: diagnostic.txt is missing; the bundle is incomplete"
    (path / "bundle.json").write_text('{"schema": "other/1"}')
    with pytest.raises(FormatError) as caught:
        read_bundle(path)
    assert "field schema: expected nantrap.bundle/1, got 'other/1'" in str(caught.value)
    (path / "bundle.json").write_text(json.dumps({"schema": "nantrap.bundle/1", "files": {"../../etc/passwd": ""}}))
    with pytest.raises(FormatError) as caught:
        read_bundle(path)
    assert "is not a file name of a bundle" in str(caught.value)


def test_structures() -> None:
    tensors: dict[str, torch.Tensor] = {}
    value = {
        "a": (1, None, "x"),
        "b": [torch.ones(2), 0.1, float("inf")],
        "dtype": torch.float16,
        "d": torch.device("cpu"),
    }
    described = json.loads(json.dumps(flatten(value, tensors, "batch")))
    back = unflatten(described, tensors)
    assert back["a"] == (1, None, "x")
    assert torch.equal(back["b"][0], torch.ones(2))
    assert back["b"][1:] == [0.1, float("inf")]
    assert (back["dtype"], back["d"]) == (torch.float16, torch.device("cpu"))
    opaque = flatten(object(), tensors, "o")
    with pytest.raises(FormatError) as caught:
        unflatten(opaque, tensors)
    assert str(caught.value) == "the bundle names a builtins.object object, which has no safe form on disk"
