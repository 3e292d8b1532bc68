"""The page of JSON documents names every key that the commands print."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nantrap
from nantrap.cli import COMMANDS, main, make_parser

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
OPEN = {
    "evidence",
    "status",
    "causes",
    "guesses",
    "facts",
    "environment",
    "report",
    "values",
    "incident",
    "injected",
    "runs",
}
"""What is below these keys depends on what was found; `values` of a check, for one."""


def keys(value: Any) -> set[str]:
    """All keys of a document, but for those below an open one."""
    if isinstance(value, list):
        return set().union(*(keys(each) for each in value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys(below) for name, below in value.items() if name not in OPEN))


SCRIPT = """
import torch

def broken():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    def loss(model, batch):
        return model(batch / batch.norm(dim=1, keepdim=True)).square().mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "batch": torch.randn(4, 4), "loss": loss}

if __name__ == "__main__":
    made = broken()
    for step in range(4):
        loss = made["loss"](made["model"], made["batch"] * (step != 2))
        made["optimizer"].zero_grad()
        loss.backward()
        made["optimizer"].step()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with something to find for each command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("trainer: {lr: 0.5, optimizer: adamw, mixed_precision: fp16}\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "broken_for_preflight.py").write_text(SCRIPT)  # no other test has imported a module of this name
    monkeypatch.syspath_prepend(str(tmp_path))
    array = np.ones((40, 4), dtype=np.float32)
    array[3, 1] = np.nan
    np.save(tmp_path / "data.npy", array)
    torch.save({"model": {"a": torch.tensor([1.0, float("nan")])}}, tmp_path / "a.pt")
    model = nn.Linear(4, 1)
    policy = nantrap.Policy(bundle=nantrap.Bundle(kind="full", data=True))
    with nantrap.Guard(
        model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir="run", policy=policy, quiet=True
    ) as guard:
        for step in range(12):
            guard.attempt(lambda x: model(x[0]).square().mean() / x[1], (torch.randn(3, 4), float(step != 7)))
    return tmp_path


@pytest.mark.parametrize(
    ("schema", "command"),
    [
        ("nantrap.doctor/1", ["doctor", "config.yaml", "--json"]),
        ("nantrap.doctor.install/1", ["doctor", "--install", "--json"]),
        ("nantrap.data/1", ["data", "data.npy", "--json"]),
        ("nantrap.audit/1", ["audit", "a.pt", "--json"]),
        ("nantrap.check/1", ["check", "run", "--json"]),
        ("nantrap.diagnose/1", ["diagnose", ".", "--json"]),
        ("nantrap.report/1", ["report", "run", "--format", "json", "-o", "-"]),
        ("nantrap.replay/1", ["replay", "run/incidents/000007-r0", "--json"]),
        ("nantrap.watch/1", ["watch", "run", "--json", "--once"]),
        ("nantrap.check-all/1", ["check", ".", "--json"]),
        ("nantrap.report/1", ["report", "run/incidents/000007-r0", "--json"]),
        ("nantrap.plot/1", ["plot", "run", "--json"]),
        ("nantrap.summary/1", ["run", "--json", "--quiet", "train.py"]),
        ("nantrap.preflight/1", ["preflight", "broken_for_preflight:broken", "--json", "--no-ranks"]),
        ("nantrap.selftest/1", ["selftest", "--device", "cpu", "--json", "--only", "flags", "late values"]),
        ("nantrap.explain/1", ["explain", "NT203", "--json"]),
        ("nantrap.explain/1", ["explain", "NT851", "--json"]),
        ("nantrap.explain/1", ["explain", "NT151", "--json"]),
        ("nantrap.explain/1", ["explain", "sqrt", "--json"]),
    ],
)
def test_every_key_is_on_the_page(
    schema: str, command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(command)
    out = capsys.readouterr().out
    document = json.loads(out.strip().splitlines()[-1] if schema == "nantrap.summary/1" else out)
    assert document["schema"] == schema
    section = PAGE.partition(f"## `{schema}`")[2].partition("\n## ")[0]
    assert section
    named = set(re.findall(r"`(\w+)`", section)) | {"schema"}
    assert keys(document) - named <= {"tone", "sign", "word"}


def test_every_command_that_reports_has_json_and_a_section_of_the_page() -> None:
    (commands,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    with_json = [name for name, parser in commands.choices.items() if "--json" in parser._option_string_actions]
    assert with_json == [name for name in COMMANDS if name not in ("serve", "completion")]
    documents = {"summary" if name == "run" else name for name in with_json}
    assert documents <= set(re.findall(r"^## `nantrap\.([a-z]+)/1`$", PAGE, re.MULTILINE))
