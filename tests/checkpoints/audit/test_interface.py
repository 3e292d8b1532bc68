"""What other parts and other people rely on: names, examples, a reader of one's own."""

from __future__ import annotations

import doctest
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nantrap.checkpoints
from nantrap.checkpoints.audit import audit, auditing, readers
from nantrap.checkpoints.audit.contents import DTYPES, Contents, Extent, StoredTensor, UnreadableError, row_major
from nantrap.checkpoints.audit.files import ByteSource
from nantrap.checkpoints.audit.readers import Reader
from nantrap.checkpoints.audit.verdict import HELP, TITLES
from nantrap.errors import UsageError


def test_the_gate_is_there_after_importing_the_package() -> None:
    script = "import nantrap; print(nantrap.checkpoints.finite_gate({}), nantrap.audit.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[] audit\n"


def test_the_names() -> None:
    assert nantrap.checkpoints.__all__ == [
        "AuditReport",
        "CheckpointAudit",
        "CheckpointStore",
        "LoadedCheckpoint",
        "Move",
        "Problem",
        "Progress",
        "ResumeFinding",
        "SavedCheckpoint",
        "check_resume",
        "compare_with_config",
        "finite_gate",
        "quarantine",
    ]


def test_the_codes_are_stable() -> None:
    assert [int(code[2:]) for code in TITLES] == list(range(901, 914))
    assert HELP.keys() == TITLES.keys()


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(auditing).attempted > 0
    assert doctest.testmod(auditing).failed == 0


def test_the_command_is_there_without_torch() -> None:
    script = "import sys, nantrap.cli.audit; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"


# The reader of docs/adding-a-reader.md: one float32 vector behind a magic word and its length.

MAGIC = b"VEC1"


def recognise(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(source: ByteSource) -> Contents:
    (count,) = struct.unpack("<I", source.read(4, 4))
    if 8 + 4 * count > source.size:
        raise UnreadableError("NT909", f"{count:,} values are announced, and the file is too short for them")
    tensor = StoredTensor(("vector",), DTYPES["float32"], (count,), row_major((count,)))
    extent = Extent(source, offset=8, size=4 * count, label="vector", tensors=(tensor,))
    return Contents("vec", extents=(extent,), names=("vector",))


def test_a_reader_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "READERS", [Reader("vec", recognise, read), *readers.READERS])
    path = tmp_path / "a.vec"
    path.write_bytes(MAGIC + struct.pack("<I3f", 3, 1.0, float("nan"), 2.0))
    report = audit(path)
    assert report.checkpoints[0].format == "vec"
    assert report.problems[0].message == "vector: 1 of 3 values is NaN"
    assert report.problems[0].first_index == (1,)
    path.write_bytes(path.read_bytes()[:-1])
    assert audit(path).problems[0].code == "NT909"


@pytest.mark.parametrize("given", [None, 3, [None], b"x", ["a.pt", 1.5]])
def test_what_is_no_path_is_wrong_use(given: Any) -> None:
    with pytest.raises(UsageError, match="a path is expected, got"):
        audit(given)


def test_an_address_of_no_known_kind_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="cannot open foo:// addresses"):
        audit("foo://bucket/run")
