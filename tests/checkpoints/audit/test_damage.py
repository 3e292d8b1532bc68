"""Flipped bits, cuts, forged files, files in motion, closed doors: found, named, survived."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from checkpoints.audit.states import training_state
from nantrap.checkpoints.audit import Progress, audit
from nantrap.checkpoints.audit.files import LocalSource
from nantrap.checkpoints.audit.readers import torch_zip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    state = training_state()
    torch.save(state, folder / "zip.pt")
    torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    return {
        "zip": (folder / "zip.pt").read_bytes(),
        "legacy": (folder / "legacy.pt").read_bytes(),
        "safetensors": save(state["model"]),
    }


def test_every_flipped_bit_in_a_record_is_found(tmp_path: Path, files: dict[str, bytes]) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(files["zip"])
    with LocalSource(str(path)) as source:
        records = [e for e in torch_zip.read(source).extents if e.size]
    chance = random.Random(0)
    for record in records:
        raw = bytearray(files["zip"])
        raw[record.offset + chance.randrange(record.size)] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        report = audit(path)
        assert not report.healthy, record.label
        assert "NT908" in {problem.code for problem in report.problems}


def test_without_crc_a_flipped_mantissa_goes_unseen_and_an_exponent_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"a.weight": torch.full((4,), 1.5)}}, path)
    raw = path.read_bytes()
    at = raw.index(b"\x00\x00\xc0\x3f" * 4)
    path.write_bytes(raw[:at] + b"\x01" + raw[at + 1 :])
    assert audit(path, verify=False).healthy
    assert audit(path).problems[0].tensor == "model.a.weight"
    path.write_bytes(raw[: at + 3] + b"\x7f" + raw[at + 4 :])  # 1.5 became NaN: 0x7fc00000
    assert audit(path, verify=False).problems[0].code == "NT901"


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_every_cut_is_found(tmp_path: Path, files: dict[str, bytes], form: str) -> None:
    raw, path = files[form], tmp_path / "a.pt"
    for keep in [1, 7, 30, *range(64, len(raw), len(raw) // 40), len(raw) - 1]:
        path.write_bytes(raw[:keep])
        report = audit(path)
        assert not report.healthy, keep
        assert report.problems[0].code in ("NT909", "NT911"), (keep, report.problems[0])
        if keep > 64:
            assert report.problems[0].code == "NT909", (keep, report.problems[0])


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_damage_makes_the_audit_itself_fail(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], form: str, data: st.DataObject
) -> None:
    raw = bytearray(files[form])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / f"damaged-{form}.pt"
    path.write_bytes(raw)
    json.dumps(audit(path).to_dict(), allow_nan=False)
    audit(path, verify=False)


class Payload:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.witness}'",)


@pytest.mark.parametrize("form", ["torch", "legacy", "pickle", "lightning"])
def test_a_payload_never_runs_and_is_named(tmp_path: Path, form: str) -> None:
    witness, path = tmp_path / "witness", tmp_path / "evil.ckpt"
    value = {"state_dict": {"w": torch.tensor([torch.nan])}, "hyper_parameters": Payload(witness)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(value))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=form != "legacy")
    report = audit(path)
    assert not witness.exists()
    evil, nan = report.problems
    assert (evil.code, evil.severity, evil.imports) == ("NT910", "error", (f"{os.system.__module__}.system",))
    assert (nan.code, nan.tensor) == ("NT901", "state_dict.w")
    torch.load(path, weights_only=False) if form != "pickle" else pickle.loads(path.read_bytes())
    assert witness.exists()  # the payload was real


class Smuggler:
    """A payload in the bytes of a storage, which torch itself would load with all its imports allowed."""

    def __init__(self, payload: Payload, *, through: Any = None) -> None:
        buffer = io.BytesIO()
        torch.save(payload, buffer, _use_new_zipfile_serialization=False)
        loader = torch.storage._load_from_bytes
        self.call = (through, (loader, buffer.getvalue())) if through else (loader, (buffer.getvalue(),))

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("through", [None, functools.partial])
@pytest.mark.parametrize("form", ["torch", "legacy", "pickle"])
def test_a_payload_in_the_bytes_of_a_storage_is_found(tmp_path: Path, form: str, through: Any) -> None:
    witness, path = tmp_path / "witness", tmp_path / "evil.pt"
    value = {"model": {"w": torch.ones(3)}, "x": Smuggler(Payload(witness), through=through)}
    if form == "pickle":
        path.write_bytes(pickle.dumps(value))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=form == "torch")
    report = audit(path)
    assert not witness.exists()
    assert (report.problems[0].code, report.problems[0].severity) == ("NT910", "error")
    if form == "pickle" and through is None:
        assert report.problems[0].imports == (f"{os.system.__module__}.system",)
    else:
        assert report.problems[0].imports == ("torch.storage._load_from_bytes",)


def test_a_payload_in_the_metadata_of_a_distributed_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(Payload(tmp_path / "witness")))
    report = audit(tmp_path / "a")
    assert not report.healthy
    assert not (tmp_path / "witness").exists()


def test_a_file_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"model": {"w": torch.zeros(2_000_000)}}, path)

    def grow(_: int) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    report = audit(path, progress=Progress(on_bytes=grow))
    assert report.problems[-1].code == "NT909"
    assert report.problems[-1].message == (
        "the file changed while it was read: it is still being written, or was replaced"
    )


def test_a_file_that_is_saved_again_while_it_is_read_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"model": {"w": torch.zeros(2_000_000)}}, path)
    report = audit(path, progress=Progress(on_bytes=lambda _: os.truncate(path, 100)))
    assert not report.healthy
    assert "became shorter while it was read" in report.problems[0].message


def test_permission() -> None:
    script = """if True:
        import os, sys
        from nantrap.checkpoints.audit import audit
        if os.geteuid() == 0:
            os.seteuid(65534)  # root may read everything
        for checkpoint in audit(sys.argv[1]).checkpoints:
            print(checkpoint.healthy, checkpoint.problems[0].code, checkpoint.problems[0].message)
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        torch.save({"model": {"w": torch.zeros(2)}}, folder / "a.pt")
        (folder / "closed").mkdir()
        (folder / "a.pt").chmod(0)
        (folder / "closed").chmod(0)
        command = [sys.executable, "-c", script, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        (folder / "closed").chmod(0o700)
    assert sorted(done.stdout.splitlines()) == [
        "False NT912 not read: Permission denied",
        "False NT912 the folder could not be listed: Permission denied",
    ], done.stderr


def test_hashes_of_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "step-1.pt"
    torch.save({"model": {"w": torch.zeros(2)}}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest = {"schema": "nantrap.manifest/1", "files": {"step-1.pt": {"sha256": digest}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert audit(path).healthy
    manifest["files"]["step-1.pt"]["sha256"] = "0" * 64  # type: ignore[index]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    problem = audit(path).problems[0]
    assert problem.code == "NT908"
    assert problem.message == "its SHA-256 is not the one in manifest.json: it was changed after it was saved"
    assert audit(path, verify=False).healthy
    (tmp_path / "manifest.json").write_text("somebody else's")
    assert audit(path).healthy


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_the_memory_stays_small(tmp_path: Path) -> None:
    """A file of 300 MB, half of it NaN, takes a worker less than 100 MB over what importing torch takes.

    One worker: how far the allocator's pools of several of them overlap in time differs from run to run.
    """
    path = tmp_path / "a.pt"
    torch.save({"model": {"w": torch.zeros(37_500_000), "bad": torch.full((37_500_000,), torch.nan)}}, path)
    script = (
        "import sys, torch\nfrom nantrap.checkpoints.audit import audit\n"
        "peak = lambda: int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])\n"
        "before = peak()\nassert not audit(sys.argv[1], workers=1).healthy\nprint((peak() - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) < 100
