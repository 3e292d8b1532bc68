"""Moved, never deleted, never overwritten, and the way back is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nantrap.checkpoints.audit import Progress, audit, quarantine
from nantrap.errors import UsageError


def write(path: Path, value: float = torch.nan) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": {"w": torch.tensor([1.0, value])}}, path)
    return path.read_bytes()


def test_only_the_bad_ones_move_and_the_undo_command_brings_them_back(tmp_path: Path) -> None:
    run, jail = tmp_path / "run", tmp_path / "jail"
    good = write(run / "step_1.pt", 2.0)
    bad = write(run / "it's step_2.pt")
    moves = quarantine(audit(run).checkpoints, jail)
    assert [Path(move.source).name for move in moves] == ["it's step_2.pt"]
    assert (run / "step_1.pt").read_bytes() == good
    assert (jail / "it's step_2.pt").read_bytes() == bad
    assert not (run / "it's step_2.pt").exists()
    line = json.loads((jail / "quarantine.jsonl").read_text())
    assert (line["codes"], line["undo"]) == (["NT901"], moves[0].undo)
    subprocess.run(moves[0].undo, shell=True, check=True, timeout=120)
    assert (run / "it's step_2.pt").read_bytes() == bad


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    contents = []
    for run in ("a", "b", "c"):
        contents.append(write(tmp_path / run / "last.pt", torch.nan if run != "c" else torch.inf))
        quarantine(audit(tmp_path / run).checkpoints, tmp_path / "jail")
    assert sorted(p.name for p in (tmp_path / "jail").glob("last*")) == ["last.pt", "last.pt.1", "last.pt.2"]
    assert (tmp_path / "jail" / "last.pt.2").read_bytes() == contents[2]


def test_a_quarantine_inside_the_run_is_not_audited_again(tmp_path: Path) -> None:
    write(tmp_path / "step_1.pt", 1.0)
    write(tmp_path / "step_2.pt")
    quarantine(audit(tmp_path).checkpoints, tmp_path / "bad")
    assert [Path(c.path).name for c in audit(tmp_path).checkpoints] == ["step_1.pt"]
    assert not audit(tmp_path / "bad").healthy  # unless it is asked for


def test_a_folder_moves_whole(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    write(folder / "pytorch_model.bin")
    (folder / "config.json").write_text("{}")
    quarantine(audit(tmp_path).checkpoints, tmp_path / "jail")
    assert sorted(p.name for p in (tmp_path / "jail" / "checkpoint-5").iterdir()) == [
        "config.json",
        "pytorch_model.bin",
    ]
    assert not folder.exists()


def test_a_link_moves_as_a_link(tmp_path: Path) -> None:
    raw = write(tmp_path / "store" / "real.pt")
    (tmp_path / "run").mkdir()
    os.symlink("../store/real.pt", tmp_path / "run" / "last.pt")
    quarantine(audit(tmp_path / "run").checkpoints, tmp_path / "jail")
    assert not (tmp_path / "run" / "last.pt").is_symlink()
    assert (tmp_path / "jail" / "last.pt").read_bytes() == raw
    assert (tmp_path / "store" / "real.pt").exists()


def test_across_disks_it_is_copied_before_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write(tmp_path / "run" / "a.pt")
    write(tmp_path / "run" / "checkpoint-1" / "pytorch_model.bin")

    def elsewhere(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", elsewhere)
    monkeypatch.setattr(os, "rename", elsewhere)
    assert len(quarantine(audit(tmp_path / "run").checkpoints, tmp_path / "jail")) == 2
    assert (tmp_path / "jail" / "a.pt").read_bytes() == raw
    assert (tmp_path / "jail" / "checkpoint-1" / "pytorch_model.bin").exists()
    assert not any((tmp_path / "run").iterdir())


def test_what_is_still_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"model": {"w": torch.full((2_000_000,), torch.nan)}}, path)
    report = audit(path, progress=Progress(on_bytes=lambda _: os.utime(path)))
    assert not report.healthy
    with pytest.warns(RuntimeWarning, match=r"last\.pt was not moved: it changed while it was read"):
        assert quarantine(report.checkpoints, tmp_path / "jail") == ()
    assert path.exists()


def left_in(folder: Path, **options: float) -> list[str]:
    """Quarantine what is bad in a folder; why something stays."""
    left: list[str] = []
    quarantine(
        audit(folder).checkpoints,
        folder / "jail",
        on_left=lambda path, reason: left.append(f"{Path(path).name}: {reason}"),
        **options,
    )
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="leases are of Linux")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99, 1.0])
def test_what_a_process_has_open_for_writing_stays(share: float, tmp_path: Path) -> None:
    """Cut at any place, and whole with a NaN; as soon as the writer is gone, it moves."""
    path = tmp_path / "last.pt"
    whole = write(path)
    with path.open("wb") as file:
        file.write(whole[: int(len(whole) * share)])
        file.flush()
        os.utime(path, (0, 0))
        assert left_in(tmp_path) == ["last.pt: a process has last.pt open for writing"]
        assert path.exists()
    os.utime(path, (0, 0))
    assert left_in(tmp_path) == []
    assert not path.exists()


def test_what_is_cut_and_new_or_changed_since_stays_and_the_rest_moves(tmp_path: Path) -> None:
    whole = write(tmp_path / "cut.pt", 1.0)
    (tmp_path / "cut.pt").write_bytes(whole[:-100])
    write(tmp_path / "nan.pt")
    text = "cut.pt is cut short and was changed less than 10 seconds ago; audit it again"
    assert left_in(tmp_path) == [f"cut.pt: {text}"]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["cut.pt"]
    os.utime(tmp_path / "cut.pt", (0, 0))
    assert left_in(tmp_path) == []
    write(tmp_path / "nan.pt")
    began = os.stat(tmp_path / "nan.pt").st_mtime
    assert left_in(tmp_path, began=began) == ["nan.pt: nan.pt was changed after the audit began"]
    assert left_in(tmp_path, began=began + 1) == []


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="becomes another user")
def test_what_is_in_a_read_only_folder_stays_and_the_rest_moves(tmp_path: Path) -> None:
    """Root may write everywhere, so another user moves."""
    kept = {name: write(tmp_path / name) for name in ("shut/a.pt", "open/b.pt")}
    (tmp_path / "jail").mkdir()
    for folder, mode in (("shut", 0o555), ("open", 0o777), ("jail", 0o777)):
        os.chmod(tmp_path / folder, mode)
    for above in (tmp_path, *tmp_path.parents[:-1]):
        if above.owner() == "root" and "pytest" in str(above):
            os.chmod(above, 0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        left: list[str] = []
        report = audit([tmp_path / "shut", tmp_path / "open"])
        moves = quarantine(report.checkpoints, tmp_path / "jail", on_left=lambda _, reason: left.append(reason))
        is_right = [Path(move.source).name for move in moves] == ["b.pt"] and "Permission denied" in "".join(left)
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "shut/a.pt").read_bytes() == kept["shut/a.pt"]
    assert sorted(path.name for path in (tmp_path / "jail").glob("*.pt")) == ["b.pt"]


def test_wrong_use(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-1" / "pytorch_model.bin")
    audits = audit(tmp_path).checkpoints
    with pytest.raises(UsageError, match=r"lies inside .*; give another folder"):
        quarantine(audits, tmp_path / "checkpoint-1" / "jail")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file; give a folder to move checkpoints into"):
        quarantine(audits, tmp_path / "file")
    with pytest.raises(UsageError, match="addresses are not supported, only local paths"):
        quarantine(audits, "s3://bucket/jail")
    assert (tmp_path / "checkpoint-1" / "pytorch_model.bin").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="names are text there")
def test_a_name_that_is_not_text_is_moved_logged_and_can_be_moved_back(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"model-\xff.pt")
    with path.open("wb") as file:
        torch.save({"model": {"w": torch.tensor([torch.nan])}}, file)
    before = path.read_bytes()
    (move,) = quarantine(audit(path).checkpoints, tmp_path / "aside")
    assert not path.exists()
    assert json.loads((tmp_path / "aside" / "quarantine.jsonl").read_text())["undo"] == move.undo
    subprocess.run(["bash", "-c", move.undo], check=True, timeout=60)
    assert path.read_bytes() == before
