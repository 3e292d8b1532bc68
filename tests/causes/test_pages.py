"""Every cause has a page, every page's example is diagnosed as what it says, and no page needs torch."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nantrap
from causes.programs import TORCH_WARNS, IncidentOf
from docs_scripts import docs_script
from nantrap.causes import Page, page, pages
from nantrap.causes.pages import SECTIONS
from nantrap.incident import BY_CODE, BY_SLUG

ALL = pages()


def _param(each: Page) -> Any:
    marks = [pytest.mark.slow] if each.slug == "rank_divergence" else []
    return pytest.param(each, id=each.code, marks=marks)


def _code(each: Page) -> str:
    return each.code


# ---- the examples


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


# ---- the texts


def test_every_cause_has_a_page() -> None:
    assert [each.code for each in ALL] == sorted(BY_CODE)
    assert {each.slug for each in ALL} == set(BY_SLUG)


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_page_is_complete(each: Page) -> None:
    assert each.title.lower() == BY_CODE[each.code].title.lower()
    assert each.what.count("\n") >= 1
    for section in SECTIONS:
        assert getattr(each, section).strip(), section
    assert "    - " in each.fix or "    " in each.fix, "the fix shows code"


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_page_refers_to_what_exists(each: Page) -> None:
    text = each.text()
    assert set(re.findall(r"NT\d{3}", text)) <= set(BY_CODE)
    assert set(re.findall(r"nantrap\.ops\.(\w+)", text)) <= set(nantrap.ops.__all__)
    assert max(map(len, text.splitlines())) <= 120


def test_text_and_markdown() -> None:
    each = page("NT302")
    lines = each.text().splitlines()
    assert lines[0] == "NT302 arccos_boundary: The derivative of acos or asin is infinite at ±1"
    assert [line for line in lines if line.endswith(":") and line[:1].isalpha() and " " not in line] == [
        "Example:",
        "Why:",
        "Fix:",
        "Proof:",
    ]
    markdown = each.markdown()
    assert markdown.startswith(
        "# NT302: The derivative of acos or asin is infinite at ±1\n\n`arccos_boundary` · backward"
    )
    assert f"```python\n{each.program}\n```" in markdown
    assert "```diff\n- angle = torch.acos((a * b).sum(-1))\n+ angle = 2 * torch.atan2(" in markdown
    assert re.findall(r"^## (.*)$", markdown, flags=re.MULTILINE) == ["Example", "Why", "Fix", "Proof"]


@pytest.mark.parametrize("name", ["NT203", "nt203", " softmax_fully_masked_row ", "Softmax-Fully-Masked-Row"])
def test_found_by_code_and_slug(name: str) -> None:
    assert page(name).code == "NT203"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("NT2003", "did you mean NT203 or "),
        ("softmax_masked_row", "did you mean softmax_fully_masked_row? "),
        ("underflow", "did you mean eps_underflow_half or adam_eps_underflow_half? "),
        ("qqq", "there is no cause 'qqq'; `nantrap explain` lists every code and slug"),
    ],
)
def test_near_misses_are_suggested(name: str, hint: str) -> None:
    with pytest.raises(nantrap.UsageError, match=re.escape(hint)):
        page(name)


# ---- no torch


def _imports_torch(program: str) -> bool:
    code = f"{program}\nimport sys; sys.exit('torch' in sys.modules)"
    return bool(subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode)


def test_texts_open_without_torch() -> None:
    program = (
        "import nantrap, nantrap.causes, nantrap.causes.rules\n"
        "from nantrap.causes import page, pages\n"
        "assert nantrap.explain('NT203') == page('NT203').text()\n"
        "assert len(pages()) > 30"
    )
    assert not _imports_torch(program)
    assert _imports_torch("import nantrap.causes; nantrap.causes.explain_case"), "this test can fail"


def test_python_without_docstrings_says_so() -> None:
    code = "import nantrap; nantrap.explain('NT203')"
    command = [sys.executable, "-OO", "-c", code]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert "the pages are docstrings, which `python -OO` removes" in result.stderr


# ---- the documentation


def test_committed_documentation_is_up_to_date() -> None:
    build = docs_script("build")
    files = {path.name: path.read_text(encoding="utf-8") for path in build.CAUSES.glob("*.md")}
    assert files == build.rendered(), "run `make docs`"


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_page_shows_the_output_of_its_example(each: Page) -> None:
    build = docs_script("build")
    output = build.shown_output(build.CAUSES / f"{each.code}.md")
    assert each.code in output, "run `make outputs`"
    assert "Traceback" not in output
    assert not re.search(r"(^|[\s(])/\w", output), "a path of the machine that wrote it"


_SAMPLE = ("softmax_fully_masked_row", "state_overwritten")
"""One example that is completed by the page, and one that has its own guard. `make test-all` runs the others."""


@pytest.mark.parametrize(
    "each",
    [pytest.param(each, id=each.code, marks=() if each.slug in _SAMPLE else (pytest.mark.slow,)) for each in ALL],
)
def test_example_runs_as_it_is(each: Page, tmp_path: Path) -> None:
    assert each.code in docs_script("build").output_of(each, tmp_path)


def test_codes_of_checkpoint_files_point_to_the_audit() -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        page("nt904")
    assert str(caught.value) == (
        "NT904 is a problem of a checkpoint file, not a cause of a failed step; `nantrap audit` prints what it means "
        "and what to do"
    )


def test_every_code_of_the_audit_points_to_it_and_no_other() -> None:
    from nantrap.checkpoints.audit.verdict import TITLES

    for code in TITLES:
        with pytest.raises(nantrap.UsageError, match="a problem of a checkpoint file"):
            page(code)
    with pytest.raises(nantrap.UsageError) as caught:
        page("NT999")
    assert "checkpoint file" not in str(caught.value)
    assert "NT999" in str(caught.value)
