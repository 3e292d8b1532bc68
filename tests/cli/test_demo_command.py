"""`nantrap demo` finds the systems by their entry point; without them it says which package has them."""

from __future__ import annotations

import argparse
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from nantrap.cli import main


def installed(monkeypatch: pytest.MonkeyPatch, *found: EntryPoint) -> None:
    def entry_points(*, group: str) -> EntryPoints:
        return EntryPoints(found).select(group=group)

    monkeypatch.setattr("nantrap.cli.demo.entry_points", entry_points)


def test_without_the_systems_it_names_their_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch)
    for arguments in ([], ["pixeldlm", "--fault", "short_text"], ["--all"], ["--json"]):
        assert main(["demo", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == (
            "error: the training systems are a package of their own, which is not installed. "
            "Install it with: pip install nantrap-systems\n"
        )


def exit_code(arguments: argparse.Namespace) -> int:
    return 1 if (arguments.system, arguments.fault, arguments.steps) == ("mine", "typo", 60) else 0


def test_the_arguments_go_to_what_the_entry_point_names(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint("mine", f"{__name__}:exit_code", "nantrap.demos"))
    assert main(["demo", "mine", "--fault", "typo"]) == 1
    assert main(["demo", "mine"]) == 0
