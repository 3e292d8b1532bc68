"""What is installed: the contents of the wheel and the source archive, and what works without torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
from hatchling import build

ROOT = Path(__file__).parents[1]
NEEDED = {
    "numpy", "safetensors", "rich", "pygments", "markdown_it", "mdurl", "jinja2", "markupsafe", "yaml", "filelock",
    "tomli", "typing_extensions",
}  # fmt: skip
"""What a plain `pip install nantrap` brings: the declared dependencies and what they import."""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive, built without network."""
    folder, here = tmp_path_factory.mktemp("dist"), Path.cwd()
    os.chdir(ROOT)
    try:
        return folder / build.build_wheel(str(folder)), folder / build.build_sdist(str(folder))
    finally:
        os.chdir(here)


@pytest.fixture(scope="module")
def light(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and its dependencies, and no torch."""
    folder = tmp_path_factory.mktemp("light") / "with a space"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(archives[0]).extractall(packages)
    for distribution in importlib.metadata.distributions():
        for name in {file.parts[0] for file in distribution.files or ()}:
            source = Path(str(distribution.locate_file(name)))
            if name.partition(".")[0] in NEEDED and source.exists() and not (packages / name).exists():
                (packages / name).symlink_to(source)
    return folder / "bin" / "python"


def run(python: Path, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE"))}
    return subprocess.run(
        [str(python), *arguments], check=False, timeout=120, cwd=folder, capture_output=True, text=True, env=environment
    )


def test_the_wheel_holds_the_package_and_nothing_else(archives: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(archives[0]).namelist()
    assert {name.partition("/")[0] for name in names} == {"nantrap", f"nantrap-{version()}.dist-info"}
    assert "nantrap/.agents/skills/nantrap/SKILL.md" in names, "what a coding agent reads"
    assert {"nantrap/py.typed", "nantrap/pages/NT203.md", "nantrap/report/templates/page.html.j2"} <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".orig", ".bak")) or "__pycache__" in name]
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/nantrap").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


def test_the_page_on_pypi_has_no_relative_link(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        text = wheel.read(f"nantrap-{version()}.dist-info/METADATA").decode()
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_source_archive_can_be_tested(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "README.md",
        "LICENSE",
        "Makefile",
        "conftest.py",
        "tests/test_distribution.py",
        "zoo/manifest.json",
    } <= names
    assert {"hatch_build.py", "noxfile.py", "action.yml", ".pre-commit-hooks.yaml", "CITATION.cff"} <= names
    assert {"systems/pyproject.toml", "benchmarks/overhead.py", "docs/index.md", "examples/two_lines.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "build/", "runs/"))]


def test_the_skill_names_commands_that_exist() -> None:
    from nantrap.cli import COMMANDS

    text = (ROOT / "src/nantrap/.agents/skills/nantrap/SKILL.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`nantrap ([a-z]+)", text))
    assert {"run", "explain", "check", "audit", "data", "doctor"} <= named <= {*COMMANDS}


def version() -> str:
    return importlib.metadata.version("nantrap")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["explain", "NT203"],
        ["doctor", str(ROOT / "examples")],
        ["check", "log.jsonl"],
        ["report", "log.jsonl", "-o", "report.html"],
        ["audit", str(ROOT / "tests/checkpoints/audit/fixtures/trainer")],
        ["data", "values.npy"],
        ["diagnose", "."],
        ["watch", "--once", "log.jsonl"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_reads_files_works_without_torch(light: Path, arguments: list[str], tmp_path: Path) -> None:
    import numpy

    losses = [2.0 / (step + 1) + 0.5 for step in range(40)]
    lines = (json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses))
    (tmp_path / "log.jsonl").write_text("".join(lines))
    numpy.save(tmp_path / "values.npy", numpy.arange(64.0).reshape(16, 4))
    ended = run(light, ["-m", "nantrap", *arguments], tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [["run", "train.py"], ["preflight", "train:make"], ["replay", "."]],
    ids=lambda arguments: arguments[0],
)
def test_what_trains_names_the_command_that_installs_torch(light: Path, arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def make(): ...\n")
    ended = run(light, ["-m", "nantrap", *arguments], tmp_path)
    assert ended.returncode == 2
    assert "error: torch is not installed" in ended.stderr
    assert "pip install 'nantrap[torch]'" in ended.stderr


def test_a_name_that_needs_torch_says_so(light: Path, tmp_path: Path) -> None:
    ended = run(light, ["-c", "import nantrap; nantrap.Guard"], tmp_path)
    assert "MissingExtraError: torch is not installed" in ended.stderr
    assert "ModuleNotFoundError" not in ended.stderr
