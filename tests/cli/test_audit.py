"""`nantrap audit`: exit codes, what goes to stdout and what to stderr, and the wording."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nantrap.cli import main
from nantrap.cli.audit import AuditCommand


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    audit = AuditCommand()
    audit.prepare_parser(parser)
    return audit.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Steps 10 to 50 of a run; NaN from 40 on."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for step in range(10, 60, 10):
        weight = torch.arange(6.0).reshape(2, 3) + 1
        if step >= 40:
            weight[1, 2] = torch.nan
        state = {"model": {"layer.weight": weight}, "step": step}
        state["optimizer"] = {"state": {}, "param_groups": [{"lr": 1e-4, "params": [0]}]}
        torch.save(state, tmp_path / "run" / f"step_{step}.pt")
    return Path("run")


def test_healthy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder / "step_10.pt") == 0
    out, err = capsys.readouterr()
    assert err == ""
    size = (folder / "step_10.pt").stat().st_size
    assert out.splitlines() == [
        f"ok  run/step_10.pt  torch · 1 tensors · {size / 1000:.3g} kB · step 10 · lr 0.0001".replace(
            "1 tensors", "1 tensor"
        ),
        "1 checkpoint read: 1 healthy, 0 not",
        "last good: run/step_10.pt",
    ]


def test_problems(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 1
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[4] == ("    error[NT901]: model.layer.weight: 1 of 6 values is NaN (float32 [2, 3], first at [1, 2])")
    assert lines[5] == "    help[NT901]: do not resume from it; take the last good checkpoint"
    assert lines[-2:] == ["5 checkpoints read: 3 healthy, 2 not", "last good: run/step_30.pt"]
    assert "\x1b" not in out


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "nantrap.audit/1"
    assert report["last_good"] == "run/step_30.pt"
    assert [c["healthy"] for c in report["checkpoints"]] == [True, True, True, False, False]
    bad = report["checkpoints"][3]
    assert bad == {
        "path": "run/step_40.pt",
        "format": "torch",
        "healthy": False,
        "verdict": "bad",
        "holds_model": True,
        "tensors": 1,
        "bytes": (folder / "step_40.pt").stat().st_size,
        "facts": {"step": 40, "lr": [1e-4]},
        "problems": [
            {
                "code": "NT901",
                "severity": "error",
                "tensor": "model.layer.weight",
                "nan": 1,
                "inf": 0,
                "message": "model.layer.weight: 1 of 6 values is NaN",
                "help": "do not resume from it; take the last good checkpoint",
                "role": "model",
                "dtype": "float32",
                "first_index": [1, 2],
                "shape": [2, 3],
            }
        ],
    }


def test_last_good_prints_a_path_for_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--last-good") == 0
    out, err = capsys.readouterr()
    assert out == "run/step_30.pt\n"
    assert "not read (bisection; --all reads them too)" in err
    assert run(folder / "step_40.pt", "--last-good") == 1, "none of them is good"
    assert capsys.readouterr().out == ""


def test_quarantine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--quarantine", "jail", "--json") == 1
    moved = json.loads(capsys.readouterr().out)["quarantined"]
    assert [Path(move["from"]).name for move in moved] == ["step_40.pt", "step_50.pt"]
    assert sorted(path.name for path in folder.iterdir()) == ["step_10.pt", "step_20.pt", "step_30.pt"]
    assert run(folder) == 0
    shutil.copy(folder / "step_10.pt", folder / "step_60.pt")
    (folder / "step_60.pt").write_bytes(b"cut")
    capsys.readouterr()
    assert run(folder, "--quarantine", "jail") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "last good: run/step_30.pt"
    assert [line.split()[0] for line in printed[-3:-1]] == ["moved", "undo:"]


def test_fast_does_not_check_the_crc(folder: Path) -> None:
    path = folder / "step_10.pt"
    raw = path.read_bytes()
    at = raw.index(torch.arange(1.0, 7.0).numpy().tobytes())
    path.write_bytes(raw[:at] + b"\x01" + raw[at + 1 :])
    assert run(path, "--fast") == 0
    assert run(path) == 1


def test_wrong_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nowhere.pt") == 2
    assert capsys.readouterr().err == (
        "error: nowhere.pt does not exist; give a file, a folder, a glob in quotes or a URL\n"
    )
    assert run(folder, "--quarantine", "run/step_10.pt") == 2
    assert "is a file; give a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        run()
    assert caught.value.code == 2


def test_many_problems_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {f"w{i}": torch.tensor([torch.nan]) for i in range(20)}}, tmp_path / "a.pt")
    run(tmp_path / "a.pt")
    err = capsys.readouterr().out
    assert err.count("error[NT901]") == 5
    assert "    and 15 more (--json lists all)" in err
    assert err.splitlines()[-1] == "last good: none of them"


def test_names_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[red]模型.pt"
    torch.save({"[bold]w": torch.tensor([torch.inf])}, path)
    assert run(path) == 1
    err = capsys.readouterr().out
    assert "[red]模型.pt" in err
    assert "error[NT902]: [bold]w: 1 of 1 values is +Inf" in err


def test_a_configuration_that_the_checkpoint_overrides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.yaml").write_text("trainer: {lr: 0.0005}\n")
    assert run(folder / "step_10.pt", "--config", "config.yaml") == 1
    err = capsys.readouterr().out
    assert "run/step_10.pt: the configuration says 0.0005 (trainer.lr), and the optimizer state" in err
    assert "holds another learning rate: loading overrides the configured one" in err
    assert run(folder / "step_10.pt", "--config", "config.yaml", "--json") == 1
    assert json.loads(capsys.readouterr().out)["resume"][0]["path"] == "run/step_10.pt"
    Path("config.yaml").write_text("trainer: {lr: 0.0001}\n")
    assert run(folder / "step_10.pt", "--config", "config.yaml") == 0
    assert run(folder / "step_10.pt", "--config", "missing.yaml") == 2


def test_a_configuration_of_python_constants_is_read_and_not_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.py").write_text("import os\nos.abort()\nLEARNING_RATE = 0.0005\nGRAD_CLIP = 1.0\n")
    assert run(folder / "step_10.pt", "--config", "config.py") == 1
    assert "the configuration says 0.0005 (learning_rate)" in capsys.readouterr().out


def test_show_prints_the_values_of_named_tensors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {
        "model": {"block.alpha": torch.tensor([0.5, torch.inf]), "block.weight": torch.ones(3, 4, dtype=torch.bfloat16)}
    }
    torch.save(state, folder / "a.pt")
    assert run(folder / "a.pt", "--show", "*.alpha", "--show", "*.weight", "--fast") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "    model.block.alpha float32 [2]: 0.5, inf  min 0.5, max 0.5" in lines
    assert "    model.block.weight bfloat16 [3, 4]: 1, 1, 1, 1, 1, 1, 1, 1, … (12 values)  min 1, max 1" in lines
    assert run(folder / "a.pt", "--show", "*.alpha", "--json") == 1
    (shown,) = json.loads(capsys.readouterr().out)["shown"]
    assert (shown["name"], shown["values"]) == ("model.block.alpha", [0.5, "inf"])
    assert run(folder / "a.pt", "--show", "*.beta") == 2
    assert "no tensor is named like *.beta" in capsys.readouterr().err


def test_only_what_holds_a_model_is_resumed_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"torch": torch.get_rng_state(), "cuda": []}, folder / "rng_state_0.pt")
    torch.save({"images": torch.ones(3, 2), "labels": torch.tensor([0.0, 1.0])}, folder / "batch.pt")
    assert run(folder, "--last-good") == 0
    assert capsys.readouterr().out == "run/step_30.pt\n"
    assert run(folder / "rng_state_0.pt") == 0
    assert "last good: none of them holds a model" in capsys.readouterr().out


def test_a_data_file_gets_advice_for_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"images": torch.tensor([[1.0, torch.nan]]), "labels": torch.tensor([0])}, folder / "batch.pt")
    assert run(folder / "batch.pt") == 1
    err = capsys.readouterr().out
    assert "help[NT901]: find the samples that hold it and drop or repair them; nantrap data names the rows" in err


def test_a_name_cannot_write_to_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "w\n\x1b[2Jok  forged.pt\u202e"
    torch.save(
        {"model": {evil: torch.tensor([torch.nan]), "x" * 20_000_000: torch.tensor([torch.inf])}},
        folder / "a\x1b[2Jb.pt",
    )
    assert run(folder / "a\x1b[2Jb.pt") == 1
    err = capsys.readouterr().out
    assert "\x1b" not in err
    assert "\u202e" not in err
    assert len(err) < 5000
    assert not [line for line in err.splitlines() if line.startswith("ok")]
    assert run(folder / "a\x1b[2Jb.pt", "--json") == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing.pt"], [""], ["run", "--workers", "0"], ["run", "--workers", "999999999"], ["run", "--workers", "٣"],
        ["run", "--config", "missing.yaml"], ["run", "--config", "run"], ["run", "--config", "binary"], ["a\0b"],
        ["run", "--quarantine", "file"], ["run", "--quarantine", "run"], ["run", "--all", "--last-good"], ["nope://x/y"],
        ["run", "--show", "*.nope"], ["empty"], ["run/*.nope"], ["s3://bucket/x"], ["run", "--nope"], [],
        ["run", "--quarantine", "file/inside"], ["file:///missing/x"], ["[" * 50],
    ],
)  # fmt: skip
def test_wrong_use_is_exit_code_2_with_words(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    Path("binary").write_bytes(b"\xff\xfe\x00\x80")
    Path("file").write_text("x")
    Path("empty").mkdir()
    try:
        code: Any = main(["audit", *arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    assert code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_devices_loops_and_closed_files_end_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "a.pt",
        ".metadata",
        "trainer_state.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "manifest.json",
    ):
        os.mkfifo(folder / name)
    (folder / "zero.pt").symlink_to("/dev/zero")
    (folder / "loop.pt").symlink_to("loop.pt")
    (folder / "self").symlink_to(".")
    (folder / "mp_rank_99999999_model_states.pt").write_bytes(b"")
    assert run(folder, "--all") == 1
    err = capsys.readouterr().out
    assert "not read: it is not a regular file (a pipe, a device or a folder)" in err
    assert run(folder / "a.pt") == 1


def test_a_reader_that_leaves_early_does_not_make_a_bad_file_good(folder: Path) -> None:
    """`nantrap audit run 2>&1 | head -1`: the exit code is that of the audit."""
    script = (
        "import os, sys\nfrom nantrap.cli import main\n"
        "read, write = os.pipe()\nos.close(read)\nos.dup2(write, 2)\nos._exit(main(['audit', sys.argv[1]]))"
    )
    line = [sys.executable, "-c", script, str(folder)]
    assert subprocess.run(line, timeout=120, check=False).returncode == 1


def test_code_that_is_not_known_fails_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code says whether the values are finite; `--strict` refuses what is not on the list as well."""

    class Config:
        pass

    Config.__module__, Config.__qualname__ = "__main__", "Config"
    main_module = sys.modules["__main__"]
    for value, code, verdict in ((1.0, 0, "ask"), (math.nan, 1, "bad")):
        path = tmp_path / f"{verdict}.pt"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(main_module, "Config", Config, raising=False)
            torch.save({"model": {"w": torch.tensor([value])}, "config": Config()}, path)
        assert main(["audit", str(path), "--quarantine", str(tmp_path / "away")]) == code
        out = capsys.readouterr().out
        assert out.startswith(f"{verdict} ")
        assert "warning[NT910]: loading it needs __main__.Config, whose code nantrap does not know" in out
        assert ("error[NT901]: model.w: 1 of 1 values is NaN" in out) is (verdict == "bad")
    path = tmp_path / "ask.pt"
    assert path.exists()
    assert main(["audit", "--strict", str(path)]) == 1
    assert "1 checkpoint read: 0 healthy, 0 not, 1 with code that is not known" in capsys.readouterr().out
    torch.save({"w": torch.ones(1)}, path)
    assert main(["audit", "--strict", str(path)]) == 0
