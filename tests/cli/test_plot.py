"""`nantrap plot`: where the file goes, and that nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from nantrap.cli import main

pytest.importorskip("matplotlib")


def test_a_picture_is_written_and_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, picture = tmp_path / "train.log", tmp_path / "curve.svg"
    log.write_text("".join(f"step {i} loss {9 - i} lr 0.1\n" for i in range(8)))
    assert main(["plot", str(log), "-o", str(picture), "--y", "loss,lr"]) == 0
    assert capsys.readouterr().out.strip() == str(picture)
    first = picture.read_bytes()
    assert main(["plot", str(log), "-o", str(picture)]) == 2
    assert "exists and is not overwritten without --force" in capsys.readouterr().err
    assert picture.read_bytes() == first
    assert main(["plot", str(log), "-o", str(picture), "--force"]) == 0
    assert picture.read_bytes() != first
    assert main(["plot", str(log), "-o", str(tmp_path / "x.gif")]) == 2
    assert "a picture ends in .png, .svg or .pdf" in capsys.readouterr().err
