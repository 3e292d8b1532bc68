"""The example of every page of a cause is diagnosed as what its page says, and runs as it is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from causes.programs import TORCH_WARNS, IncidentOf
from docs_scripts import docs_script
from nantrap.pages import Page, cause_pages

ALL = cause_pages()


def _param(each: Page) -> Any:
    marks = [pytest.mark.slow] if each.slug == "rank_divergence" else []
    return pytest.param(each, id=each.code, marks=marks)


def _code(each: Page) -> str:
    return each.code


@pytest.mark.parametrize("each", [_param(each) for each in ALL if each.slug != "rank_divergence"])
@pytest.mark.filterwarnings(*TORCH_WARNS)
def test_example_is_diagnosed_as_its_page_says(each: Page, incident_of: IncidentOf) -> None:
    incident = incident_of(each.slug)
    assert incident is not None, "the example runs without an incident"
    codes = [cause.code for cause in incident.causes]
    if each.slug == "dead_training":  # it makes no step fail, so it is listed below the cause of a failure
        assert each.code in codes[1:]
    else:
        assert codes[0] == each.code
    assert not [note for note in incident.notes if note.startswith("the rule for")]


_RANK = """
import sys, runpy
import torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
names = runpy.run_path(f"{folder}/example.py")
codes = []
for batch in names["batches"]:
    incident = names["guard"].attempt(names["loss_fn"], batch).incident
    codes += [cause.code for cause in incident.causes[:1]] if incident else []
print(*codes)
"""


@pytest.mark.parametrize("each", [_param(each) for each in ALL if each.slug == "rank_divergence"])
def test_example_of_two_ranks(each: Page, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(each.example, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0].split() for process in ranks]
    assert any(codes[:1] == [each.code] for codes in said), said


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_example_defines_what_it_promises(each: Page) -> None:
    defined = {
        name.id
        for node in ast.walk(ast.parse(each.example))
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    } | {node.name for node in ast.parse(each.example).body if isinstance(node, ast.FunctionDef)}
    assert {"model", "optimizer", "batches", "loss_fn"} <= defined
    assert len([line for line in each.example.splitlines() if line.strip()]) <= 20


_SAMPLE = ("softmax_fully_masked_row", "state_overwritten")
"""One example that is completed by the page, and one that has its own guard. `make test-all` runs the others."""


@pytest.mark.parametrize(
    "each",
    [pytest.param(each, id=each.code, marks=() if each.slug in _SAMPLE else (pytest.mark.slow,)) for each in ALL],
)
def test_example_runs_as_it_is(each: Page, tmp_path: Path) -> None:
    assert each.code in docs_script("build").output_of(each, tmp_path)
