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
from typing import NamedTuple

import numpy
import pytest
import safetensors.numpy

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


def run(
    python: Path, arguments: Sequence[str], folder: Path, *, timeout: float = 120, **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE"))}
    return subprocess.run(
        [str(python), *arguments],
        check=False,
        timeout=timeout,
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment | settings,
    )


def test_the_wheel_holds_the_package_and_nothing_else(archives: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(archives[0]).namelist()
    assert {name.partition("/")[0] for name in names} == {"nantrap", f"nantrap-{version()}.dist-info"}
    assert "nantrap/.agents/skills/nantrap/SKILL.md" in names, "what a coding agent reads"
    assert {"nantrap/py.typed", "nantrap/pages/NT203.md", "nantrap/report/templates/page.html.j2"} <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".orig", ".bak")) or "__pycache__" in name]
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/nantrap").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


def test_the_pages_on_pypi_have_no_relative_link(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        text = wheel.read(f"nantrap-{version()}.dist-info/METADATA").decode()
    for page in (text, (ROOT / "systems/README.md").read_text(encoding="utf-8")):
        links = re.findall(r"\]\(([^)]*)\)", page)
        assert len(links) > 5
        assert [link for link in links if not link.startswith("https://")] == []
        ours = [link.partition("/blob/main/")[2] for link in links if "/nantrap/blob/main/" in link]
        assert [path for path in ours if not (ROOT / path).exists()] == []


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


def write_files(folder: Path) -> None:
    """A log, an array and a checkpoint, all healthy."""
    losses = [2.0 / (step + 1) + 0.5 for step in range(40)]
    lines = (json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses))
    (folder / "log.jsonl").write_text("".join(lines))
    numpy.save(folder / "values.npy", numpy.arange(64.0).reshape(16, 4))
    safetensors.numpy.save_file({"weight": numpy.ones(4, dtype="float32")}, folder / "weights.safetensors")


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
    write_files(tmp_path)
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


def write_table(folder: Path) -> None:
    """A file that only an extra reads."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / "table").mkdir()
    parquet.write_table(arrow.table({"a": [1.0, 2.0]}), folder / "table/a.parquet")


class Use(NamedTuple):
    """What an extra is for: a program or a command that needs it, and what it prints where the extra is installed."""

    arguments: tuple[str, ...]
    prints: str
    refused: str = ""
    """What is said without the extra, if it is not the command that installs it."""


def program(text: str) -> tuple[str, ...]:
    return ("-c", text)


def exporter(name: str) -> Use:
    call = f"open_exporters([{name!r}], run_dir='run', facts={{}}).close()"
    return Use(program(f"from nantrap.record.exporters import open_exporters; {call}; print('closed')"), "closed")


EXTRAS = {
    "torch": Use(program("import nantrap; print(nantrap.Guard)"), "nantrap.guard.guard.Guard"),
    "accelerate": Use(program("import nantrap.accelerate; print(nantrap.accelerate.guard)"), "function guard"),
    "deepspeed": Use(program("import nantrap.deepspeed; print(nantrap.deepspeed.guard)"), "function guard"),
    "lightning": Use(program("import nantrap.lightning; print(nantrap.lightning.Guard)"), "nantrap.lightning.Guard"),
    "transformers": Use(program("import nantrap.transformers as us; print(us.Guard)"), "nantrap.transformers.Guard"),
    "remote": Use(("-m", "nantrap", "audit", "file://FOLDER/weights.safetensors"), "ok"),
    "data": Use(("-m", "nantrap", "data", "table"), "1 file read"),
    "ray": Use(("-m", "nantrap", "data", "values.npy", "--engine", "ray"), "1 file read"),
    "plot": Use(("-m", "nantrap", "plot", "log.jsonl", "-o", "loss.png"), "loss.png"),
    "watch": Use(program("from nantrap.report.watching import WatchApp; print(WatchApp)"), "WatchApp", "textual"),
    "wandb": exporter("wandb"),
    "mlflow": exporter("mlflow"),
    "trackio": exporter("trackio"),
    "serve": Use(program("import sys, nantrap.cli as cli; sys.exit(cli.main(['serve', '.', '--token', 'short']))"),
                 "--token: at least 8 characters"),
    "completion": Use(("-m", "nantrap", "completion", "bash"), "_shtab_nantrap"),
    "fast": Use(program("from nantrap.checkpoints.audit.crc32 import crc32; print(crc32.__module__)"),
                "deflate", "zlib"),
}  # fmt: skip


def test_every_extra_is_tried(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        text = wheel.read(f"nantrap-{version()}.dist-info/METADATA").decode()
    assert {*EXTRAS} == {*re.findall("^Provides-Extra: (.*)$", text, re.MULTILINE)} - {"all"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_without_an_extra_its_use_names_it(light: Path, extra: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    write_table(tmp_path)
    use = EXTRAS[extra]
    ended = run(light, [part.replace("FOLDER", str(tmp_path)) for part in use.arguments], tmp_path)
    said = ended.stdout + ended.stderr
    assert use.prints not in ended.stdout
    assert (use.refused or f"pip install 'nantrap[{extra}]'") in said


def pip(python: Path, arguments: Sequence[str], folder: Path, **settings: str) -> None:
    command = ["-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    ended = run(python, command, folder, timeout=900, **settings)
    if "No matching distribution" in ended.stderr or "connection" in ended.stderr:
        pytest.skip("no registry can be reached")
    assert ended.returncode == 0, ended.stderr


def environment(folder: Path) -> Path:
    venv.create(folder / "environment", with_pip=True, symlinks=True)
    return folder / "environment/bin/python"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("extra", EXTRAS)
def test_pip_installs_an_extra_that_does_what_it_is_for(
    archives: tuple[Path, Path], extra: str, tmp_path: Path
) -> None:
    python, use = environment(tmp_path), EXTRAS[extra]
    options, settings = [], {"DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
    if extra in ("torch", "accelerate", "lightning", "transformers", "deepspeed"):
        pip(python, ["install", f"torch=={importlib.metadata.version('torch').partition('+')[0]}"], tmp_path)
    if extra == "deepspeed":  # its setup imports torch
        pip(python, ["install", "setuptools", "wheel", "packaging", "ninja", "py-cpuinfo"], tmp_path)
        options = ["--no-build-isolation"]
    pip(python, ["install", *options, f"{archives[0]}[{extra}]"], tmp_path, **settings)
    write_files(tmp_path)
    write_table(tmp_path)
    offline = {"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": "sqlite:///runs.db", "TRACKIO_DIR": str(tmp_path)}
    ended = run(
        python, [part.replace("FOLDER", str(tmp_path)) for part in use.arguments], tmp_path, **settings, **offline
    )
    said = ended.stdout + ended.stderr
    assert use.prints in said
    assert "pip install 'nantrap[" not in said


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["wheel", "source archive"])
def test_pip_downloads_less_than_40_megabytes_and_no_torch(
    archives: tuple[Path, Path], kind: str, tmp_path: Path
) -> None:
    python = environment(tmp_path)
    archive = archives[0] if kind == "wheel" else archives[1]
    pip(python, ["download", "--dest", "downloaded", str(archive)], tmp_path)
    downloaded = {path.name.partition("-")[0].lower(): path for path in (tmp_path / "downloaded").iterdir()}
    assert "torch" not in downloaded
    assert sum(path.stat().st_size for path in downloaded.values()) < 40e6
    pip(python, ["install", "--find-links", "downloaded", str(archive)], tmp_path)
    assert run(python, ["-m", "nantrap", "explain", "NT203"], tmp_path).returncode == 0
