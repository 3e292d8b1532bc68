"""What cannot be read is said in words, the rest is still read, and nothing is half written."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap.cli import main
from nantrap.doctor.data import check_data
from nantrap.engines import Threads

FACTORIES = """
import sys
import numpy as np

class Dataset:
    def __len__(self):
        return 5
    def __getitem__(self, index):
        if index in (2, 4):
            raise KeyError(f"no file for it")
        return {"x": np.ones(4) * index}

class NoLength(Dataset):
    def __len__(self):
        raise RuntimeError("not loaded yet")

def raises():
    raise ValueError("broken")

def leaves():
    sys.exit(7)

def nothing():
    return None

def stream():
    yield {"x": 1.0}
    raise OSError("connection lost")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad_factories.py").write_text(FACTORIES)
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('no arguments')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad_factories:raises", "calling it raised ValueError: broken"),
        ("bad_factories:leaves", "calling it raised SystemExit: 7"),
        ("bad_factories:nothing", "gave an object of type NoneType; a dataset has len and []"),
        ("bad_factories:NoLength", "len of the dataset raised RuntimeError: not loaded yet"),
        ("bad_factories:missing", "module bad_factories has no missing"),
        ("no_such_module:make", "importing no_such_module raised ModuleNotFoundError"),
        ("leaving:make", "importing leaving raised SystemExit: no arguments"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_dataset_that_cannot_be_made(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", name]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.usefixtures("folder")
def test_samples_that_raise_are_findings() -> None:
    (found,) = check_data("bad_factories:Dataset").findings
    assert (found.slug, found.indices, found.message) == (
        "unreadable_file", (2, 4), "2 samples raised KeyError: 'no file for it'",
    )  # fmt: skip
    (found,) = check_data("bad_factories:stream").findings
    assert (found.indices, found.message) == ((1,), "1 sample raised OSError: connection lost")


def write_tar(path: Path, mode: Any) -> None:
    with tarfile.open(path, mode) as archive:
        for number in range(10):
            data = io.BytesIO()
            np.save(data, np.random.default_rng(number).normal(size=50).astype("f4"))
            info = tarfile.TarInfo(f"{number:03}.npy")
            info.size = len(data.getvalue())
            archive.addfile(info, io.BytesIO(data.getvalue()))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
@pytest.mark.parametrize("keep", [0.02, 0.4])
def test_a_cut_archive(name: str, keep: float, tmp_path: Path) -> None:
    path = tmp_path / name
    write_tar(path, "w:" + name[6:])
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    np.save(tmp_path / "b.npy", np.random.default_rng(0).normal(size=(8, 3)))
    report = check_data(tmp_path)
    (found,) = report.findings
    assert found.slug == "unreadable_file"
    assert found.message.startswith("the archive is cut")
    assert "\n" not in found.message
    assert report.lengths[str(tmp_path / "b.npy")] == 8


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    os.symlink("nowhere.npy", tmp_path / "link.npy")
    os.symlink("loop.npy", tmp_path / "loop.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "foreign.tar").write_bytes(b"garbage" * 300)
    np.save(tmp_path / "good.npy", np.random.default_rng(0).normal(size=(8, 3)))
    found = {os.path.basename(each.file): each.message for each in check_data(tmp_path).findings}
    assert found == {
        "foreign.tar": "not a tar archive",
        "link.npy": "cannot be opened: No such file or directory",
        "loop.npy": "cannot be opened: Too many levels of symbolic links",
        "pipe.npy": "cannot be opened: it is not a regular file (a pipe, a device or a folder)",
    }


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.random.default_rng(0).normal(size=(8, 3)))
    closed = str(tmp_path / "closed")
    plain = os.listdir

    def listdir(path: str) -> list[str]:  # the superuser may list every folder, so chmod would not do
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return plain(path)

    monkeypatch.setattr(os, "listdir", listdir)
    report = check_data(tmp_path)
    assert [(each.file, each.message) for each in report.findings] == [
        (closed, "the folder cannot be read: Permission denied")
    ]
    assert report.samples == 8


def test_a_full_disk_costs_neither_the_report_nor_an_old_list(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(100, 3))
    x[::3] = np.nan
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "bad.json").write_text("old")
    limit = len("old")
    ended = subprocess.run(
        [sys.executable, "-m", "nantrap", "data", "x.npy", "--quarantine", "bad.json", "--force", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert ended.returncode == 2
    assert "error: cannot write bad.json: File too large; nothing is left of it" in ended.stderr
    assert json.loads(ended.stdout)["findings"][0]["slug"] == "non_finite"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "x.npy"]
    assert (tmp_path / "bad.json").read_text() == "old"


@pytest.mark.parametrize(
    ("target", "words"),
    [("nowhere/bad.json", "there is no folder nowhere"), (".", "is not a file"), ("/dev/null", "is not a file")],
)
def test_a_list_that_cannot_be_written_is_reported_immediately(
    target: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(folder / "x.npy", np.full((4, 4), np.nan))
    assert main(["data", "x.npy", "--quarantine", target, "--force"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "files read" not in err
    assert os.path.exists("/dev/null")
    assert not os.path.isfile("/dev/null")


CHANGED = "changed while it was read; check it again when nothing writes to it"


def cut_it(path: Path) -> None:
    os.truncate(path, 1000)


def replace_it(path: Path) -> None:
    path.rename(path.with_suffix(".old"))
    np.save(path, np.random.default_rng(1).normal(size=(20, 8)))


def overwrite_it(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"x" * 100)
    os.utime(path, ns=(0, 0))  # a clock that is too coarse must not hide it


@pytest.mark.parametrize("spoil", [cut_it, replace_it, overwrite_it])
def test_a_file_that_changes_while_it_is_read(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """Whatever else is seen of it then is not said: it may be over already."""
    path = tmp_path / "a.npy"
    np.save(path, np.random.default_rng(0).normal(size=(20, 8)))

    class Spoiling(Threads):
        def run(self, function: Any, items: Any) -> Iterator[tuple[int, Any]]:
            if items:  # there are no images
                spoil(path)
            yield from super().run(function, items)

    report = check_data(path, engine=Spoiling(1))
    assert CHANGED in [finding.message for finding in report.findings]
    assert [finding.message for finding in report.findings if finding.slug == "unreadable_file"] == [CHANGED]
