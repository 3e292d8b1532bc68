"""The steps of "Your first change" in CONTRIBUTING.md, followed as they stand there in a copy of the repository."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^### \d\. A[n]? \w+ (?:in )?`([^`]+)`.*?^(`{3,})\w+\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
JSON = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product, the zoo and the benchmarks with the change of the document."""
    root = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__")
    for folder in ("src/nantrap", "zoo", "benchmarks"):
        shutil.copytree(ROOT / folder, root / folder, ignore=unwanted)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Your first change")[2]
    (table, row), *written = [(match[1], match[3]) for match in STEP.finditer(text)]
    assert len(written) == 3, "a page, a function and a program"
    lines = (root / table).read_text(encoding="utf-8").splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if '"domain_error"' in line)
    (root / table).write_text("".join([*lines[: place + 1], row, *lines[place + 1 :]]), encoding="utf-8")
    for name, content in written:
        assert not (root / name).exists()
        (root / name).write_text(content, encoding="utf-8")
    manifest = json.loads((root / "zoo/manifest.json").read_text(encoding="utf-8"))
    (entry,) = JSON.findall(text)
    manifest["programs"] |= json.loads(entry)
    (root / "zoo/manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return root


def _run(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment |= {"PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, encoding="utf-8", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_explain_prints_the_page(copy: Path) -> None:
    said = _run(copy, "-m", "nantrap", "explain", "lgamma-at-pole")
    assert said.startswith("NT209 lgamma_at_pole: Lgamma of 0 or of a negative integer is infinite\n")
    assert "Fix:\n    Add the 1 that the factorial needs:\n\n        - torch.lgamma(counts)\n" in said
    assert "NT209  lgamma_at_pole" in _run(copy, "-m", "nantrap", "explain")


def test_the_guard_names_the_cause_of_the_example(copy: Path) -> None:
    program = "from nantrap.pages import find_page; print(find_page('NT209').program)"
    (copy / "example.py").write_text(_run(copy, "-c", program), encoding="utf-8")
    said = _run(copy, "example.py")
    assert "error[NT209]: lgamma of 0 or of a negative integer is infinite in the loss" in said
    assert "help: the logarithm of n! is torch.lgamma(n + 1)" in said


def test_the_benchmark_finds_the_program_and_the_answer_is_right(copy: Path) -> None:
    name = "poisson_lgamma_of_a_zero_count"
    lines = copy / "lines.jsonl"
    _run(copy, "-m", "zoo", "--tool", "nantrap_attempt", "--tool", "nantrap_two_lines", name, "--lines", str(lines))
    answers = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert [answer["tool"] for answer in answers] == ["nantrap_attempt", "nantrap_two_lines"]
    for answer in answers:
        assert answer["place"]
        assert answer["cause"]
        assert answer["proven"]
