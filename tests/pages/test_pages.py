"""Every cause and every check has a page of the right form, every page a code, and no page needs torch."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files

import pytest

import nantrap
from docs_scripts import docs_script
from nantrap.cli import main
from nantrap.doctor.checks import CONFIGURATION, SOURCE
from nantrap.errors import UsageError
from nantrap.incident import BY_CODE, BY_SLUG, lookup
from nantrap.incident.checks import CHECKS, DATA_RULES
from nantrap.pages import Page, cause_pages, check_pages, find_page
from nantrap.pages.page import read_page

ALL = cause_pages()


def _code(each: Page) -> str:
    return each.code


# ---- the texts


def test_every_cause_has_a_page() -> None:
    assert [each.code for each in ALL] == sorted(BY_CODE)
    assert {each.slug for each in ALL} == set(BY_SLUG)


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_page_is_complete(each: Page) -> None:
    assert each.title.lower() == BY_CODE[each.code].title.lower()
    assert each.what.count("\n") >= 1
    assert list(each.sections) == ["example", "why", "fix", "proof"]
    assert all(body.strip() for body in each.sections.values())
    assert "    " in each.sections["fix"], "the fix shows code"


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_page_refers_to_what_exists(each: Page) -> None:
    text = each.text()
    assert set(re.findall(r"NT\d{3}", text)) <= set(BY_CODE)
    assert set(re.findall(r"nantrap\.ops\.(\w+)", text)) <= set(nantrap.ops.__all__)
    assert max(map(len, text.splitlines())) <= 120


def test_text_and_markdown() -> None:
    each = read_page(lookup("NT302"))
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
    assert find_page(name).code == "NT203"


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
        find_page(name)


# ---- no torch


def _imports_torch(program: str) -> bool:
    code = f"{program}\nimport sys; sys.exit('torch' in sys.modules)"
    return bool(subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode)


def test_texts_open_without_torch() -> None:
    program = (
        "import nantrap, nantrap.causes, nantrap.causes.rules\n"
        "from nantrap.pages import cause_pages, check_pages, find_page\n"
        "assert nantrap.explain('NT203') == find_page('NT203').text()\n"
        "assert len(cause_pages()) > 30 and len(check_pages()) > 30"
    )
    assert not _imports_torch(program)
    assert _imports_torch("import nantrap.causes; nantrap.causes.explain_case"), "this test can fail"


def test_pages_open_in_python_without_docstrings() -> None:
    code = "import nantrap; print(nantrap.explain('NT203'), end='')"
    result = subprocess.run([sys.executable, "-OO", "-c", code], check=True, capture_output=True, timeout=120)
    assert result.stdout.decode("utf-8").splitlines() == nantrap.explain("NT203").splitlines()


# ---- the documentation


def test_committed_documentation_is_up_to_date() -> None:
    build = docs_script("build")
    written = {path.name: path.read_text(encoding="utf-8") for path in build.CAUSES.glob("*.md")}
    assert written == build.rendered(), "run `make docs`"


@pytest.mark.parametrize("each", ALL, ids=_code)
def test_page_shows_the_output_of_its_example(each: Page) -> None:
    build = docs_script("build")
    output = build.shown_output(build.CAUSES / f"{each.code}.md")
    assert each.code in output, "run `make outputs`"
    assert "Traceback" not in output
    assert not re.search(r"(^|[\s(])/\w", output), "a path of the machine that wrote it"


def test_codes_of_checkpoint_files_point_to_the_audit() -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        find_page("nt904")
    assert str(caught.value) == (
        "NT904 is a problem of a checkpoint file, not a cause of a failed step; `nantrap audit` prints what it means "
        "and what to do"
    )


def test_every_code_of_the_audit_points_to_it_and_no_other() -> None:
    from nantrap.checkpoints.audit.verdict import TITLES

    for code in TITLES:
        with pytest.raises(nantrap.UsageError, match="a problem of a checkpoint file"):
            find_page(code)
    with pytest.raises(nantrap.UsageError) as caught:
        find_page("NT999")
    assert "checkpoint file" not in str(caught.value)
    assert "NT999" in str(caught.value)


# ---- the checks


def test_every_check_has_a_function_and_one_slug() -> None:
    assert [check.code for check in CHECKS] == [f"NT{number}" for number in (*range(801, 825), *range(851, 881))]
    assert {check.row for check in (*CONFIGURATION, *SOURCE)} == set(CHECKS)
    assert len({check.slug for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("each", check_pages(), ids=_code)
def test_page_of_a_check_is_complete(each: Page) -> None:
    assert list(each.sections) == ["example", "why", "fix", "silent"]
    assert each.what
    assert all(body.strip() for body in each.sections.values())


def test_the_pages_of_checks_in_docs_are_up_to_date() -> None:
    build = docs_script("build")
    written = {path.name: path.read_text(encoding="utf-8") for path in build.CHECKS.glob("*.md")}
    assert written == build.rendered_checks(), "run `make docs`"


def test_explain_shows_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NT851"]) == 0
    shown = capsys.readouterr().out
    assert shown == find_page("isnan-misses-inf").text() + "\n"
    assert shown.startswith("NT851 isnan_misses_inf: A loop skips bad steps by isnan, which lets Inf through")


# ---- every code


def test_every_file_is_the_page_of_a_code() -> None:
    written = {entry.name for entry in files("nantrap.pages").iterdir() if entry.name.endswith(".md")}
    assert written - {"README.md"} == {f"{code}.md" for code in [*BY_CODE, *(check.code for check in CHECKS)]}


def test_no_code_stands_in_two_tables() -> None:
    codes = [*BY_CODE, *(check.code for check in CHECKS), *(rule.code for rule in DATA_RULES.values())]
    assert len(codes) == len(set(codes))
    assert not {check.slug for check in CHECKS} & set(BY_SLUG)


def test_every_cause_check_and_rule_is_explained() -> None:
    for page in (*cause_pages(), *check_pages()):
        assert nantrap.explain(page.code) == nantrap.explain(page.slug) == page.text()
    for rule in DATA_RULES.values():
        assert nantrap.explain(rule.code) == nantrap.explain(rule.code.lower()) == rule.text()


def test_slugs() -> None:
    assert nantrap.explain("isnan-misses-inf").startswith("NT851 isnan_misses_inf: A loop skips bad steps by isnan")
    assert nantrap.explain("outlier").startswith("NT153 outlier: a sample's largest magnitude is above 50 times")


def test_what_it_does_not_know() -> None:
    with pytest.raises(UsageError, match="NT499"):
        nantrap.explain("NT499")
    with pytest.raises(UsageError, match="`nantrap audit` prints what it means"):
        nantrap.explain("NT901")


def test_checks_open_without_torch() -> None:
    assert not _imports_torch("import nantrap; nantrap.explain('NT851'); nantrap.explain('NT151')")
