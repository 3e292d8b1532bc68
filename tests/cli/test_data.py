"""`nantrap data` on the command line: exit codes, JSON on stdout, words on stderr, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nantrap.cli import main


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(50, 16)).astype("f4")
    x[4, 1] = np.nan
    np.savez(tmp_path / "train.npz", x=x, labels=np.arange(50) % 7)
    return tmp_path / "train.npz"


def test_findings(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", str(bad), "--classes", "6", "--json"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert document["schema"] == "nantrap.data/1"
    assert (document["files"], document["samples"]) == (1, 50)
    assert [finding["code"] for finding in document["findings"]] == ["NT151", "NT158"]
    assert main(["data", str(bad), "--classes", "6"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"bad {bad}  50 samples",
        "    non_finite[NT151]: x: 1 sample with 1 NaN: 4",
        "    label_out_of_range[NT158]: labels: 7 samples outside 0..5 (up to 6): 6, 13, 20, 27, 34 and 2 more",
        "help[NT151]: repair or leave out these samples: one of them makes the whole batch NaN",
        "help[NT158]: the loss indexes with the label: use 0..N-1, or -100 to ignore",
        *lines[5:7],
        f"1 file read, 50 samples, {_size(bad)}: 2 findings in 1 file",
        "to leave the bad samples out: nantrap data ... --quarantine bad-samples.json",
    ]


def _size(path: Path) -> str:
    return f"{path.stat().st_size / 1000:.3g} kB"


def test_nothing_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.arange(20.0))
    assert main(["data", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == "x: min 0, max 19, mean 9.5 (20 finite values)\n1 file read, 20 samples, 288 bytes: nothing found\n"


def test_quarantine_is_not_overwritten(bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "bad-samples.json"
    assert main(["data", str(bad), "--quarantine", str(target)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"1 bad samples are listed in {target}"
    assert main(["data", str(bad), "--quarantine", str(target)]) == 2
    assert "exists; choose another name" in capsys.readouterr().err
    assert main(["data", str(bad), "--quarantine", str(target), "--force"]) == 1


@pytest.mark.parametrize("arguments", [["nothing.npy"], ["no_such_module_here:thing"]])
def test_wrong_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err


def test_control_characters_in_a_name_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a\x1b[2J\u202e.npy").write_bytes(b"")
    assert main(["data", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert r"a\x1b[2J\u202e.npy" in "".join(printed.split())  # a long path is wrapped


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NT160"]) == 0
    assert capsys.readouterr().out.startswith("NT160 empty_mask: a row of a mask holds no 1\n\nFix:\n    softmax over")
    assert main(["explain", "nt151", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slug"] == "non_finite"


def test_arrays_are_checked_without_importing_torch(bad: Path) -> None:
    code = (
        "import sys; from nantrap.doctor.data import check_data; "
        f"check_data({str(bad)!r}); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_minimum_maximum_and_mean_of_each_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.arange(20, dtype="f4").reshape(10, 2)
    x[3, 1] = np.nan
    np.savez(tmp_path / "a.npz", x=x, half=np.full((10, 2), 60000, "f2") * [1, -1], label=np.arange(10) % 2)
    np.savez(tmp_path / "b.npz", x=np.full((10, 2), 50, "f4"), big=np.full((10, 2), 3e38, "f4"))
    assert main(["data", str(tmp_path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    fields = {each["field"]: (each["values"], each["min"], each["max"], each["mean"]) for each in document["fields"]}
    assert fields["x"] == (39, 0, 50, pytest.approx((190 - 7 + 1000) / 39)), "over both files, without the NaN"
    assert fields["half"] == (20, -60000, 60000, 0)
    assert fields["label"] == (20 - 10, 0, 1, 0.5)
    assert fields["big"] == (20, pytest.approx(3e38), pytest.approx(3e38), pytest.approx(3e38)), "its sum overflows"
    assert main(["data", str(tmp_path)]) == 1
    assert "x: min 0, max 50, mean 30.3333 (39 finite values)" in capsys.readouterr().out


def test_what_no_reader_knows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.arange(20.0))
    for name in ("a.rar", "b.rar", "README"):
        (tmp_path / name).write_bytes(b"x")
    assert main(["data", str(tmp_path)]) == 0
    assert "not read: 3 files of other kinds (.rar 2, without an ending 1; --json lists all)" in capsys.readouterr().out
    assert main(["data", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_read"] == [str(tmp_path / n) for n in ("README", "a.rar", "b.rar")]
    assert main(["data", str(tmp_path / "x.npy")]) == 0
    assert "not read" not in capsys.readouterr().out


def test_the_runs_of_nantrap_in_a_folder_are_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside them, data files are read; other JSON lines in a folder of the same name as well."""
    np.save(tmp_path / "x.npy", np.arange(20.0))
    for run in ("runs/a", "runs/b"):
        bundle = tmp_path / run / "incidents" / "000007-r0"
        bundle.mkdir(parents=True)
        (tmp_path / run / "journal-r0.jsonl").write_text('{"step": 0, "loss": NaN}\n' * 9)
        np.save(bundle / "kept.npy", np.full(9, np.nan))
    (tmp_path / "runs_of_mine").mkdir()
    (tmp_path / "runs_of_mine" / "rows.jsonl").write_text('{"x": 1.0}\n{"x": 2.0}\n')
    assert main(["data", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["files"], document["samples"]) == (2, 22)
    a, b = tmp_path / "runs" / "a", tmp_path / "runs" / "b"
    assert document["notes"] == [f"{a}, {b} are runs of nantrap and no data: nantrap check judges them"]
    assert main(["data", str(a)]) == 1, "a folder that is named is read"
