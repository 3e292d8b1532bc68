"""The commands that pages show are run, on example files in an empty folder, and give what their page says of them.

Commands that read something run here, in this process. Those that train (`nantrap run`, the systems' own scripts) start
a process each and are marked slow. `ELSEWHERE` names those that another test runs, `NOT_RUN` those that no test runs,
with the reason; they are parsed (`test_code_blocks.py`).
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from docs.test_code_blocks import ROOT, Block, blocks
from health.printed_logs import SICK
from nantrap.cli import main

TIMEOUT = 240

ELSEWHERE = (
    "torchrun ",  # test_served_and_ranked.py: on two ranks
    "nantrap serve ",  # test_served_and_ranked.py: asked and stopped
    "nantrap demo radiodiff",  # test_served_and_ranked.py
    "python examples/schedulers/",  # tests/examples, with Ray
    "nantrap preflight ",  # test_command_outputs.py compares the output, as for the next three
    "nantrap data ",
    "nantrap doctor",
    "nantrap audit run/a.pt --show",
)

NOT_RUN = (
    "python benchmarks/",  # minutes, and other people's programs; test_served_and_ranked.py tries the options
    "pip install nantrap ",  # from an index; test_distribution.py tries the wheel
)

TRAINS = ("nantrap run", "python -m nantrap_systems", "python train.py", "python examples/", "tail ", "grep ")
"""Commands that train, and those of others that read what was trained before them in the same block."""

TRAIN_SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x = torch.rand(8, 4)
    if step == 5:
        x[2] = 0.0
    loss = (model(x) + x.sum(1, keepdim=True).log()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"epoch {1 + step // 4}/2 | step {step + 1}/8 | loss {loss.item():.4f} | lr 1.00e-02")
"""


def shown(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of a block with the lines that the page shows below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ ") or (block.language == "sh" and line.strip()):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
    return found


EVERY = [(block, command, lines) for block in blocks("console", "sh", "") for command, lines in shown(block)]
READS = [entry for entry in EVERY if not entry[1].startswith((*ELSEWHERE, *NOT_RUN, *TRAINS))]
STARTS = [entry for entry in EVERY if entry[1].startswith(TRAINS) and not entry[1].startswith(ELSEWHERE)]


def ids(entries: list[tuple[Block, str, list[str]]]) -> list[str]:
    return [f"{block.name}-{command}" for block, command, _ in entries]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages take for granted: runs, logs, checkpoints, and the program of the page of `replay`."""
    folder = tmp_path_factory.mktemp("pages")
    (program,) = [b.text for b in blocks("python") if b.page.endswith("replay.md") and "__main__" in b.text]
    (folder / "train.py").write_text(program, encoding="utf-8")
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        runpy.run_path("train.py", run_name="__main__")
    exp1 = folder / "runs" / "exp1"
    journal = exp1 / "journal-r0.jsonl"
    entries = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    watched = [{**entry, "watch": {"alpha": 0.5}} if "lr" in entry else entry for entry in entries]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in watched), encoding="utf-8")
    for name in ("exp2", "a"):
        shutil.copytree(exp1, folder / "runs" / name)
    shutil.copytree(exp1 / "incidents" / "000012-r0", exp1 / "incidents" / "000007-r0")
    (exp1 / "checkpoints").mkdir()
    for step, number in ((30, 0.5), (40, float("nan"))):
        state = {"model": {"weight": torch.full((4, 4), number)}, "step": step}
        torch.save(state, exp1 / "checkpoints" / f"step_{step}.pt")
    losses = [2.0 - 0.01 * step for step in range(60)] + [float("nan")] * 4
    lines = [f"epoch {1 + i // 32}/2 | step {i + 1}/64 | loss {x:.4f} | lr 1.00e-03" for i, x in enumerate(losses)]
    (folder / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "trainer.log").write_text(SICK["transformers_zero_loss"][1], encoding="utf-8")
    records = [json.dumps({"step": i, "loss": x}) for i, x in enumerate(losses)]
    for name in ("train.jsonl", "training_log.jsonl"):
        (folder / name).write_text("\n".join(records) + "\n", encoding="utf-8")
    plan = {"stages": [{"name": "first", "epochs": "1-2", "loss": "falls"}]}
    (folder / "stages.yaml").write_text(json.dumps(plan), encoding="utf-8")
    return folder


def run_here(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """A command of nantrap in this process, as a shell would give it its words."""
    words = shlex.split(re.split(r" [|>] ", command)[0], comments=True)
    assert words[0] == "nantrap"
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "train", raising=False)
    return main([*words[1:], *more])


@pytest.mark.parametrize(("block", "command", "lines"), READS, ids=ids(READS))
def test_a_command_runs(
    block: Block,
    command: str,
    lines: list[str],
    example: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = any("The failure is gone" in line for line in lines)
    if gone:
        fixed = (
            (example / "train.py")
            .read_text(encoding="utf-8")
            .replace('batch["weight"].sum()\n', 'batch["weight"].sum().clamp(min=1e-6)\n')
        )
        example = Path(shutil.copytree(example, example.parent / "fixed", dirs_exist_ok=True))
        (example / "train.py").write_text(fixed, encoding="utf-8")
    forced = (
        ("--force",) if command.startswith(("nantrap report", "nantrap plot")) and "--format" not in command else ()
    )
    code = run_here(command, example, monkeypatch, *forced)
    said = capsys.readouterr()
    output = (said.out + said.err).replace(f"{example}{os.sep}", "")
    assert code in (0, 1), output
    assert output.strip(), "it says something"
    if "replay" in command:  # these outputs hold no numbers that depend on the machine
        assert code == (0 if gone else 1)
        printed = [line.strip() for line in output.splitlines()]
        expected = [line for line in lines if line.strip() and line != "..."]
        if sys.version_info < (3, 11):  # keeps no columns of the code that runs: no carets
            expected = [line for line in expected if "^" not in line]
        missing = [line for line in expected if line.strip() not in printed]
        assert not missing, output
    for name in re.findall(r"-o (\S+)", command):
        assert (example / name).stat().st_size > 0


def test_the_list_of_demos_is_that_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [lines for _, command, lines in EVERY if command == "nantrap demo"]
    assert pages
    main(["demo"])
    captured = capsys.readouterr()
    printed = " ".join((captured.out + captured.err).split())
    for line in [line for lines in pages for line in lines]:
        if name := re.match(r"\s*(\w+) {2,}", line):
            assert name[1] in printed


BLOCKS = list(dict.fromkeys(block for block, _, _ in STARTS))


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_commands_that_train_run(block: Block, tmp_path: Path) -> None:
    """Those of a block in their order, each in a process of its own, in a folder that is empty at first."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    for path in (tmp_path / "train.py", package / "train.py"):
        path.write_text(TRAIN_SCRIPT, encoding="utf-8")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "my.yaml").write_text("training: {warmup_steps: 3}\n", encoding="utf-8")
    bad = {"schema": "nantrap.bad-samples/1", "files": []}
    (tmp_path / "bad-samples.json").write_text(json.dumps(bad), encoding="utf-8")
    for command in [command for other, command, _ in STARTS if other == block]:
        done = start(command, tmp_path)
        assert done.returncode in (0, 1), f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"


def start(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(re.split(r" [|>] ", command)[0], comments=True)
    words = [word for word in words if word not in ("--your", "--options")]
    if "--export" in words:
        words = ["nantrap", "run", "--export", "tensorboard", words[-1]]  # wandb asks for an account
    programs = {"nantrap": [sys.executable, "-m", "nantrap"], "python": [sys.executable]}
    environment = {**os.environ, "SLACK_WEBHOOK_URL": "http://127.0.0.1:9/", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    environment["PYTHONWARNINGS"] = "ignore"
    return subprocess.run(
        [*programs.get(words[0], words[:1]), *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        check=False,
    )


def test_every_exception_is_a_command() -> None:
    named = (*ELSEWHERE, *NOT_RUN, *TRAINS)
    unused = [start for start in named if not any(command.startswith(start) for _, command, _ in EVERY)]
    assert unused == []
