"""Small files that describe more than a machine holds: each reader stops at its limit, says which, and uses little."""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap.doctor.data import check_data

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
MOST_MEMORY = 500 << 20
ZEROS = bytes(16 << 20)


def header(shape: tuple[int, ...], *, fortran: bool = False) -> bytes:
    stream = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, about)  # type: ignore[no-untyped-call]
    return stream.getvalue()


def archive(path: Path, *, megabytes: int, fortran: bool = False) -> None:
    """An array of zeros, compressed a thousand times."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file, file.open("a.npy", "w") as member:
        member.write(header((megabytes, 512, 512), fortran=fortran))
        for _ in range(megabytes // 16):
            member.write(ZEROS)


def expanding_archive(folder: Path) -> None:
    archive(folder / "a.npz", megabytes=1040)


def fortran_archive(folder: Path) -> None:
    archive(folder / "a.npz", megabytes=160, fortran=True)


def many_members(folder: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.ones(3))
    with zipfile.ZipFile(folder / "a.npz", "w") as file:
        for number in range(10_300):
            file.writestr(f"a{number}.npy", stream.getvalue())


def many_more_members(folder: Path) -> None:
    """Only the end record says so: the archive is not even listed."""
    with zipfile.ZipFile(folder / "a.npz", "w") as file:
        file.writestr("a.npy", b"")
    data = bytearray((folder / "a.npz").read_bytes())
    data[-10:-6] = (200_000_000).to_bytes(4, "little")
    (folder / "a.npz").write_bytes(data)


def wide_sample(folder: Path) -> None:
    """A sparse file: it has no bytes on the disk."""
    with (folder / "a.npy").open("wb") as file:
        file.write(header((1, 100 << 20)))
        file.truncate(file.tell() + (400 << 20))


def no_values(folder: Path) -> None:
    (folder / "a.npy").write_bytes(header((1 << 60, 0, 5)))


def hdf5(folder: Path) -> Any:
    return pytest.importorskip("h5py").File(folder / "a.h5", "w")


def empty_space(folder: Path) -> None:
    with hdf5(folder) as file:
        file.create_dataset("x", shape=(1 << 40,), dtype="f8", chunks=(1 << 16,))


def deep_groups(folder: Path) -> None:
    with hdf5(folder) as file:
        group = file
        for _ in range(200):
            group = group.create_group("g")
        group["x"] = np.ones(3)


def many_datasets(folder: Path) -> None:
    with hdf5(folder) as file:
        for number in range(10_020):
            file[f"d{number}"] = 1.0


def long_line(folder: Path) -> None:
    (folder / "a.jsonl").write_bytes(b'{"a": [' + b"1," * (30 << 19) + b"1]}\n")


def long_row(folder: Path) -> None:
    (folder / "a.csv").write_bytes(b"a,b\n1," + b"9" * (30 << 20) + b"\n")


def many_columns(folder: Path) -> None:
    names = ",".join(f"c{number}" for number in range(20_000))
    (folder / "a.csv").write_text(f"{names}\n" + ",".join(["1.5"] * 20_000) + "\n")


def many_keys(folder: Path) -> None:
    with (folder / "a.jsonl").open("w") as file:
        for number in range(300):
            file.write(json.dumps({f"k{number}_{inner}": 1.5 for inner in range(100)}) + "\n")


def nested(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"a":' * 100_000 + "1" + "}" * 100_000 + '\n{"x": 1}\n' + "[" * 200_000 + "\n")


def many_lists(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"a": [' + "[]," * (5 << 20) + "1]}\n")


def long_value(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": ["x" * 20_000_000]}), folder / "a.parquet", compression="zstd")


def expanding_batch(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": np.zeros(70 << 20, dtype=np.float32)})
    options = arrow.ipc.IpcWriteOptions(compression="zstd")
    with (
        arrow.OSFile(str(folder / "a.arrow"), "wb") as sink,
        arrow.ipc.new_file(sink, table.schema, options=options) as writer,
    ):
        writer.write_table(table)


class Zeros(io.RawIOBase):
    """As many zeros as are asked for."""

    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def compressed_tar(folder: Path) -> None:
    with (
        gzip.open(folder / "a.tar.gz", "wb", 1) as packed,
        tarfile.open(fileobj=packed, mode="w|") as file,
    ):
        member = tarfile.TarInfo("a.npy")
        member.size = 1100 << 20
        file.addfile(member, Zeros())


def large_member(folder: Path) -> None:
    with (folder / "a.tar").open("wb") as file:
        member = tarfile.TarInfo("a.npy")
        member.size = 200 << 20
        file.write(member.tobuf())
        file.truncate(512 + (200 << 20) + 1024)


def linked_members(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as file:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo("a.npy")
            member.type, member.linkname = kind, "/etc/passwd"
            file.addfile(member)


FILES: list[tuple[Callable[[Path], None], str]] = [
    (expanding_archive, "bytes would expand to 1,090,519,168, more than 200 times as many"),
    (fortran_archive, "a compressed array in Fortran order takes 167,772,160 bytes, at most 134,217,728 are"),
    (many_members, "300 more entries were not read: at most 10,000 arrays of a file are"),
    (many_more_members, "not read: the archive has 1 members, at most 200,000 are read"),
    (wide_sample, "not read: a sample takes 419,430,400 bytes, at most 268,435,456 are read at once"),
    (no_values, "not read: 1,152,921,504,606,846,976 samples without a value, at most 200,000 are read"),
    (empty_space, "not read: 0 bytes would expand to 8,796,093,022,208, more than 200 times as many"),
    (deep_groups, "1 group was not read: more than 64 groups are around it"),
    (many_datasets, "20 more entries were not read: at most 10,000 arrays of a file are"),
    (long_line, "not read from byte 0 on: a line is longer than 16,777,216 bytes"),
    (long_row, "not read from byte 0 on: a line is longer than 16,777,216 bytes"),
    (many_columns, "not read: it has 20,000 columns, at most 10,000 are read"),
    (many_keys, "200 lines were not read: the lines have more than 10,000 different keys"),
    (nested, "lines were not read"),
    (many_lists, "1 line not read: more than 1,000,000 lists and objects in a line"),
    (long_value, "a row takes 20,0"),
    (expanding_batch, "a record batch takes 293,601,280 bytes, at most 268,435,456 are read at once"),
    (compressed_tar, "would expand to 1,153,434,112, more than 200 times as many"),
    (large_member, "after 0 samples: not read: a.npy takes 209,715,200 bytes, at most 134,217,728 are read at once"),
    (linked_members, "3 members not read: links and devices are not followed"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words"), FILES, ids=lambda value: getattr(value, "__name__", None))
def test_a_limit_is_met_said_and_costs_little(make: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    make(tmp_path)
    code = (
        "import re, sys\n"
        "from nantrap.cli import main\n"
        "code = main(['data', sys.argv[1], '--json'])\n"
        "status = open('/proc/self/status').read()\n"  # ru_maxrss has that of the process that forked, too
        "print(int(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1]) * 1024, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    command = [sys.executable, "-c", code, str(next(tmp_path.iterdir()))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, preexec_fn=limit)
    assert ended.returncode == 1, ended.stderr
    assert words in ended.stdout
    assert int(ended.stderr.splitlines()[-1]) < MOST_MEMORY


def test_what_is_large_and_ordinary_is_read(tmp_path: Path) -> None:
    """A compressed archive is read piece by piece, and groups that are linked into each other once."""
    values = np.random.default_rng(0).normal(size=(3000, 40)).astype(np.float32)
    values[2999, 7] = np.nan
    np.savez_compressed(tmp_path / "a.npz", x=values, y=np.asfortranarray(values), z=np.float16(values))
    report = check_data(tmp_path / "a.npz")
    assert [(each.slug, each.field, each.indices) for each in report.findings if each.slug == "non_finite"] == [
        ("non_finite", name, (2999,)) for name in "xyz"
    ]
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "loop.h5", "w") as file:
        group = file.create_group("a")
        group["up"], group["self"], group["back"] = h5py.SoftLink("/"), group, file["/"]
        group["x"] = values
    report = check_data(tmp_path / "loop.h5")
    assert [(each.slug, each.field) for each in report.findings] == [("non_finite", "a/x"), ("unreadable_file", None)]
    assert report.findings[1].message.startswith("a/back leads back to a group around it: the links form a circle")
    assert "(and 1 more)" in report.findings[1].message


def test_hdf5_opens_no_other_file(tmp_path: Path) -> None:
    """Links, storage and virtual datasets that lead out of a file are said and not followed, however they loop."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.array([1.0, np.nan])
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["here"] = np.ones(3)
        file["alias"] = h5py.SoftLink("/here")
        file["gone"] = h5py.SoftLink("/nothing")
        file["round"], file["about"] = h5py.SoftLink("/about"), h5py.SoftLink("/round")
        file["out"] = h5py.ExternalLink("other.h5", "/x")
        file["through"] = h5py.SoftLink("/out/y")
        file.create_dataset("stored", shape=(8,), dtype="u1", external=[(str(tmp_path / "pipe"), 0, 8)])
        layout = h5py.VirtualLayout(shape=(2,), dtype="f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "a.h5"), "itself", shape=(2,))
        file.create_virtual_dataset("itself", layout)  # the HDF5 library overflows its stack on it
    command = [sys.executable, "-m", "nantrap", "data", str(tmp_path / "a.h5"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["samples"] == 3
    assert {each["field"]: each["message"] for each in report["findings"]} == {
        "gone": "a link to something that the file does not have",
        "round": "not read: a link through more than 128 names, perhaps in a circle",
        "about": "not read: a link through more than 128 names, perhaps in a circle",
        "out": "not read: a link to another file, other.h5:/x; check that file",
        "through": "not read: a link to another file, other.h5:/x; check that file",
        "stored": "not read: its values are in another file; check those files",
        "itself": "not read: its values are in other datasets (it is virtual), often of other files; check those files",
    }


def test_empty_lines_are_no_samples(tmp_path: Path) -> None:
    """Only lines that hold something are listed, whatever their ends are."""
    (tmp_path / "a.csv").write_bytes(b"a\n" + b"\n" * 1000 + b"1.5\r\n" + b"\r\n\n" * 1000 + b"nan")
    report = check_data(tmp_path / "a.csv")
    assert report.samples == 2
    assert [(each.slug, each.indices) for each in report.findings] == [("non_finite", (1,))]


def test_a_quote_over_a_line_end_is_not_cut(tmp_path: Path) -> None:
    """Pieces of a CSV file end outside of quotes; a quote that is only an inch does no harm."""
    rows = "".join(f'{number},"a\nb"\n' for number in range(1_100_000))
    (tmp_path / "quoted.csv").write_text("x,text\n" + rows)
    assert check_data(tmp_path / "quoted.csv").samples == 1_100_000
