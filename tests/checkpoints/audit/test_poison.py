# ruff: noqa: E501 - forged files, each on a line
"""Poison is found wherever it can hide, and no file takes more memory or time than its size justifies."""

from __future__ import annotations

import array
import io
import json
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save as save_arrays

from checkpoints.audit.attacks import proto, text
from nantrap.checkpoints import CheckpointStore
from nantrap.checkpoints.audit import audit
from nantrap.checkpoints.audit.verdict import AuditReport

NAN = float("nan")


def audit_bytes(tmp_path: Path, raw: bytes, name: str = "a.pt") -> AuditReport:
    (tmp_path / name).write_bytes(raw)
    return audit(tmp_path / name)


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.array([1.0, NAN]), id="float64"),
        pytest.param(np.array([1.0, NAN], dtype=">f4"), id="big-endian"),
        pytest.param(np.array([1.0, np.inf], dtype="f2"), id="float16"),
        pytest.param(np.array([[1.0, NAN]], order="F"), id="Fortran"),
        pytest.param(np.array([1.0, NAN], dtype=np.longdouble), id="longdouble"),
        pytest.param(np.array([1j, NAN]), id="complex"),
        pytest.param(np.array([1.0, NAN], dtype=object), id="objects"),
        pytest.param([0.5, NAN], id="a list"),
        pytest.param((0.5, [NAN]), id="nested"),
        pytest.param(array.array("d", [0.5, NAN]), id="array.array"),
        pytest.param({"w": {"inner": [-np.inf]}}, id="Inf in a list"),
    ],
)
def test_arrays_and_lists_in_a_pickle(tmp_path: Path, value: Any, protocol: int) -> None:
    assert not audit_bytes(tmp_path, pickle.dumps({"model": {"w": value}}, protocol)).healthy
    buffer = io.BytesIO()
    torch.save({"model": {"w": value}}, buffer, pickle_protocol=protocol)
    assert not audit_bytes(tmp_path, buffer.getvalue()).healthy


def test_a_learning_rate_of_numpy(tmp_path: Path) -> None:
    state = {
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float64("nan"), "betas": (0.9, NAN), "params": [0]}]}
    }
    report = audit_bytes(tmp_path, saved(state))
    assert {problem.tensor for problem in report.problems} == {
        "optimizer.param_groups.0.lr", "optimizer.param_groups.0.betas.1",
    }  # fmt: skip
    state["optimizer"]["param_groups"][0] |= {"lr": np.float64(0.25), "betas": (0.9, 0.99)}  # type: ignore[index]
    report = audit_bytes(tmp_path, saved(state))
    assert report.healthy
    assert report.checkpoints[0].facts["lr"] == [0.25]


def test_measurements_may_be_anything(tmp_path: Path) -> None:
    state = {"model": {"w": torch.ones(2)}, "best_loss": float("inf"), "losses": [1.0, NAN], "val_acc": NAN}
    report = audit_bytes(tmp_path, saved(state))
    assert report.healthy
    assert {problem.severity for problem in report.problems} == {"warning"}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_storages_saved_by_themselves(tmp_path: Path, form: str) -> None:
    def packed(value: Any) -> bytes:
        buffer = io.BytesIO()
        if form == "pickle":
            return pickle.dumps(value)
        torch.save(value, buffer, _use_new_zipfile_serialization=form == "zip")
        return buffer.getvalue()

    bad = torch.tensor([1.0, NAN])
    typed = bad.storage()
    assert [p.code for p in audit_bytes(tmp_path, packed({"model": typed})).problems] == ["NT901"]
    (problem,) = audit_bytes(tmp_path, packed({"model": bad.untyped_storage()})).problems
    assert (problem.code, problem.severity) == ("NT912", "warning")
    assert "untyped storage: its 8 bytes have no dtype, and were not judged" in problem.message


def safetensors(entries: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("F8_E8M0", b"\x00\xfe", b"\x00\xff"), ("F8_E4M3FNUZ", b"\x00\xff", b"\x00\x80"),
        ("F8_E5M2FNUZ", b"\x7f\xff", b"\x7f\x80"), ("F8_E4M3", b"\x7e\xfe", b"\x00\xff"), ("F8_E5M2", b"\x7b\xfb", b"\x7c\x00"),
        ("C128", struct.pack("<4d", 1, 2, 3, 4), struct.pack("<4d", 1, 2, 3, NAN)),
        ("C64", struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 1, NAN, 3, 4)),
        ("BF16", b"\x80\x3f\x80\xbf", b"\x80\x3f\x80\xff"), ("F16", b"\xff\x7b\xff\xfb", b"\x00\x7c\x00\x00"),
    ],
)  # fmt: skip
def test_every_dtype_of_safetensors(tmp_path: Path, dtype: str, good: bytes, bad: bytes) -> None:
    for data, healthy in ((good, True), (bad, False)):
        entry = {"w": {"dtype": dtype, "shape": [2], "data_offsets": [0, len(data)]}}
        report = audit_bytes(tmp_path, safetensors(entry, data))
        errors = [p.code for p in report.problems if p.code in ("NT901", "NT902")]
        assert bool(errors) is not healthy, report.problems


def test_an_unknown_dtype_is_reported(tmp_path: Path) -> None:
    entry = {"w": {"dtype": "F7_NEW", "shape": [2], "data_offsets": [0, 2]}}
    (problem,) = audit_bytes(tmp_path, safetensors(entry, b"ab")).problems
    assert problem.message == "w has the dtype F7_NEW, which is not known here: it was not read"


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [((0, 4), (0, 4), "shares bytes"), ((0, 4), (6, 10), "begins 2 bytes too late"), ((0, 4), (2, 6), "shares bytes")],
)
def test_tensors_of_safetensors_lie_side_by_side(tmp_path: Path, first: Any, second: Any, words: str) -> None:
    entries = {n: {"dtype": "F32", "shape": [1], "data_offsets": list(at)} for n, at in (("a", first), ("b", second))}
    report = audit_bytes(tmp_path, safetensors(entries, bytes(second[1])))
    assert words in report.problems[0].message
    twice = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    assert not audit_bytes(tmp_path, struct.pack("<Q", len(twice)) + twice).healthy


def test_healthy_safetensors_stay_healthy(tmp_path: Path) -> None:
    assert audit_bytes(tmp_path, save_arrays({"a": np.ones(3), "b": np.ones((2, 2), np.float16)})).healthy


def test_a_flipped_bit_in_the_dtype_of_a_store_file(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path / "store").save(step=1, model={"w": torch.ones(4)})
    raw = path.read_bytes()
    assert audit_bytes(tmp_path, raw, "alone.safetensors").healthy
    for old, new in ((b'"F32"', b'"I32"'), (b'"F32"', b'"U32"'), (b'"model.w"', b'"model.v"'), (b"[4]", b"[4]")):
        changed = raw.replace(old, new)
        assert audit_bytes(tmp_path, changed, "alone.safetensors").healthy is (changed == raw)
    assert not audit_bytes(tmp_path, raw[:-1] + b"\x01", "alone.safetensors").healthy


# ---- ambiguity


def test_a_tar_archive_that_begins_like_a_pickle(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("PICKLE}."))
    raw = bytearray(buffer.getvalue())
    raw[:9] = b"\x80\x02}.\0\0\0\0\0"
    raw[148:156] = b" " * 8
    raw[148:156] = f"{sum(raw[:512]):06o}\0 ".encode()
    tarfile.open(fileobj=io.BytesIO(raw)).close()  # it is one
    (problem,) = audit_bytes(tmp_path, bytes(raw)).problems
    assert "a tar archive" in problem.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw + b"more", "something follows after its directory"),
        (lambda raw: b"x" + raw, ""),
        (lambda raw: raw[:-2] + b"\x05\x00hello", "something follows after its directory"),
        (lambda raw: raw.replace(b"a/version", b"b/version", 1), "has another name before its bytes"),
        (lambda raw: raw.replace(b"a/version", b"A/DATA.PKL"[:9]), ""),
    ],
)
def test_an_archive_that_can_be_read_in_two_ways(tmp_path: Path, change: Any, words: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", proto(b"}"))
        archive.writestr("a/version", "3")
    assert audit_bytes(tmp_path, buffer.getvalue()).healthy
    report = audit_bytes(tmp_path, change(buffer.getvalue()))
    assert not report.healthy
    assert words in report.problems[0].message


# ---- time and memory


def peak_of(path: Path) -> int:
    """Megabytes that the audit takes in addition to its imports, in a separate process."""
    script = (
        "import sys, numpy\nfrom nantrap.checkpoints.audit import audit\nimport nantrap.checkpoints.audit.auditing\n"
        "peak = lambda: int(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])\n"
        "before = peak()\nreport = audit(sys.argv[1], workers=1)\nprint((peak() - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=1700, check=True
    )
    return int(done.stdout)


BOMBS = {
    "nested tuples": proto(b")" + b"\x85" * 1_500_000),
    "nested lists": proto(b"]" * 300_000 + b"a" * 299_999),
    "nested dicts": proto((b"}" + text("a")) * 200_000 + b"N" + b"s" * 200_000),
    "a million lists": proto(b"(" + b"]" * 30_000_000 + b"t"),
    "doubling": proto(b"]" + b"2\x94(h\x00h\x00e" * 200 + b"."),
    "copies of a list": proto(b"](" + b"K\x01" * 100_000 + b"e\x940" + (text("builtins") + text("list") + b"\x93h\x00\x85R0") * 5000 + b"N"),
    "copies of bytes": proto(
        text("x" * 1_000_000) + b"\x940" + (text("_codecs") + text("encode") + b"\x93h\x00" + text("latin1") + b"\x86R0") * 2000 + b"N", 2
    ),
    "a long line": b"\x80\x02c" + b"a" * 40_000_000,
    "a length of gigabytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x",
    "a deep key": proto(b"}" + b")" + b"\x85" * 1_000_000 + b"Ns"),
    "a wide key": proto(b"}(" + b"K\x01" * 60 + b"t" + b"\x94" + b"".join(b"(" + b"h" + bytes([n]) + (b"h" + bytes([n])) * 60 + b"t\x94" for n in range(5)) + b"Ns"),
}  # fmt: skip


SLOW_BOMBS = ("nested tuples", "nested lists", "nested dicts", "a million lists", "a deep key", "doubling")


@pytest.mark.timeout(1800)  # a loaded machine may take minutes for what takes seconds alone
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW_BOMBS else []) for n in BOMBS])
def test_no_pickle_takes_more_than_400_megabytes(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.pkl").write_bytes(BOMBS[name])
    assert peak_of(tmp_path / "a.pkl") < 450  # the stated 400, and what the allocator keeps


def test_repeated_and_overlapping_views_are_read_once(tmp_path: Path) -> None:
    base = torch.arange(1000.0)
    views = {f"v{n}": base[n : n + 900] for n in range(100)}
    huge = torch.ones(1).expand(1 << 40)
    assert audit_bytes(tmp_path, saved({"model": {**views, "huge": huge}})).healthy
    base[950] = NAN
    report = audit_bytes(tmp_path, saved({"model": views}))
    assert report.problems[0].tensor == "model.v0"
    sliding = torch.ones(3000).as_strided((1000, 1000), (2, 1))
    assert audit_bytes(tmp_path, saved({"model": {"w": sliding}})).healthy


def test_a_rank_of_a_hundred_million_is_one_line(tmp_path: Path) -> None:
    for name in ("mp_rank_99999999_model_states.pt", "model-00001-of-99999.safetensors"):
        (tmp_path / name).write_bytes(b"")
    report = audit(tmp_path)
    assert len(report.problems) < 60
    assert any("99,999,979 more files of the same save are missing" in problem.message for problem in report.problems)
