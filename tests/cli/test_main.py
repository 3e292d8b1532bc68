"""The command line as a whole: help, version, exit codes, and what is imported for it."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

import nantrap
import nantrap.cli
from nantrap.cli import COMMANDS, main
from nantrap.cli.explain import ExplainCommand


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True, timeout=120)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"nantrap {nantrap.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:4] == "    " and line[4] != " "] == list(COMMANDS)


def test_no_command_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "What to do first:" in captured.err
    shown = {
        line.rpartition("   nantrap ")[2].split()[0] for line in captured.err.splitlines() if "   nantrap " in line
    }
    assert shown <= set(COMMANDS)
    assert {"run", "report", "audit", "explain", "demo"} <= shown
    assert max(map(len, captured.err.splitlines())) <= 110


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs nantrap[completion]")
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["exlain"])
    assert stopped.value.code == 2
    assert "invalid choice: 'exlain'" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_its_docstring(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: nantrap {name} ")
    docstring = type(nantrap.cli._load(name)).__doc__
    assert docstring is not None
    assert docstring.splitlines()[0] in " ".join(shown.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    described = capsys.readouterr().out.partition("positional arguments")[0]
    assert max(len(line) for line in described.splitlines() if not line.startswith("  ")) <= 80


def test_errors_are_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ExplainCommand, arguments: argparse.Namespace) -> int:
        raise nantrap.UsageError("the file is\n  not what it should be")

    monkeypatch.setattr(ExplainCommand, "run", fail)
    assert main(["explain"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "error: the file is not what it should be\n")


def test_an_interrupt_exits_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: ExplainCommand, arguments: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(ExplainCommand, "run", interrupted)
    assert main(["explain"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_failure_of_ours_is_no_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(self: ExplainCommand, arguments: argparse.Namespace) -> int:
        raise ZeroDivisionError("\x1b[2J")

    monkeypatch.setattr(ExplainCommand, "run", broken)
    assert main(["explain"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: nantrap itself failed: ZeroDivisionError: \\x1b[2J",
        "help: NANTRAP_DEBUG=1 shows where; please report it with the command that you ran",
    ]
    monkeypatch.setenv("NANTRAP_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["explain"])


def test_python_m_nantrap() -> None:
    result = python("-m", "nantrap", "explain", "NT203")
    assert result.returncode == 0
    assert result.stdout.startswith("NT203 softmax_fully_masked_row: ")
    assert python("-m", "nantrap", "explain", "NT999").returncode == 2


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["explain"], ["explain", "NT203"], ["audit", "--help"]]
)
def test_no_torch_before_a_command_needs_it(arguments: list[str]) -> None:
    code = (
        "import contextlib, sys\n"
        "from nantrap.cli import main\n"
        f"with contextlib.suppress(SystemExit): main({arguments!r})\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    assert python("-c", code).returncode == 0


def test_only_the_command_that_was_asked_for_is_imported() -> None:
    code = "import sys; from nantrap.cli import main; main(['explain']); sys.exit('nantrap.cli.audit' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_a_reader_that_stops_early_is_no_error() -> None:
    code = (
        "import os, sys; from nantrap.cli import main; from nantrap.cli.explain import ExplainCommand\n"
        "read, write = os.pipe(); os.close(read); os.dup2(write, 1)\n"
        "def run(self, arguments): print('x' * 100_000, flush=True)\n"
        "ExplainCommand.run = run\n"
        "sys.exit(main(['explain']))"
    )
    result = python("-c", code)
    assert (result.returncode, result.stderr) == (0, "")
