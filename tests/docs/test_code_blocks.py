"""The code in README.md, docs and the pages of the systems: Python blocks run, the commands of console blocks exist.

Not run here: pages of causes (tests/causes runs their examples), diffs and sample outputs. The blocks in `SLOW` need a
framework, which takes seconds to import. A block may use what its page takes for granted, such as a model.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional

import nantrap
from nantrap.cli import make_parser
from nantrap.health import read_expectations

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("README.md", "docs/*.md", "docs/*/*.md", "systems/README.md", "systems/docs/*.md")
    for page in ROOT.glob(pattern)
    if page.name != "api.md"  # made by `make docs`: signatures, which do not run
)
GENERATED = ("docs/causes/", "docs/checks/")

SLOW = (
    "import lightning\n",
    "import nantrap.transformers\n",
    "import nantrap.accelerate\n",
    'store = nantrap.CheckpointStore("runs/train-',
)
"""Python blocks by their first characters that need a framework or a run; `test_blocks_of_frameworks_run` runs them."""

LAUNCHERS = {"torchrun", "pip", "make", "bash", "tail", "grep"}
"""Commands of others."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    found = []
    for path in PAGES:
        page = path.relative_to(ROOT).as_posix()
        if page.startswith(GENERATED):
            continue
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if match[1] in languages:
                found.append(Block(page, text[: match.start()].count("\n") + 1, match[1], match[2]))
    return found


PYTHON = blocks("python")
BY_PAGE = {page: [block for block in PYTHON if block.page == page] for page in sorted({b.page for b in PYTHON})}


def taken_for_granted(page: str, folder: Path) -> dict[str, Any]:
    """The names that pages use without defining them, as their readers have them."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randn(4, 8))
    (folder / "bad-samples.json").write_text(
        json.dumps(
            {
                "schema": "nantrap.bad-samples/1",
                "files": [{"file": "a.npz", "samples": 4, "bad": {"non_finite": [1]}}],
            }
        ),
        encoding="utf-8",
    )

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    def train(model: nn.Module) -> None:
        loss_fn(model, torch.randn(2, 8)).backward()

    state = {"model": model.state_dict()}
    return {
        "__name__": "page",
        "Case": object,
        "Claim": object,
        "Reader": lambda *_: None,
        "batch": 3,
        "best": 0.5,
        "ema": None,
        "epoch": 1,
        "functional": functional,
        "guard": nantrap.Guard(model, optimizer, quiet=True),
        "loader": [torch.randn(2, 8)],
        "loss_fn": loss_fn,
        "mask": torch.tensor([[True, False], [False, False]]),
        "model": model,
        "nantrap": nantrap,
        "nn": nn,
        "optimizer": optimizer,
        "os": importlib.import_module("os"),
        "prediction": torch.zeros(2, 2),
        "rule": lambda slug: lambda function: function,
        "scaler": None,
        "scheduler": None,
        "scores": torch.zeros(2, 2),
        "state": state,
        "step": 10,
        "target": torch.zeros(2, 2),
        "torch": torch,
        "train": train if page == "docs/inject.md" else data,
        "vec": types.SimpleNamespace(recognise=None, read=None),
    }


@pytest.mark.parametrize("page", BY_PAGE)
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in their order, in one namespace and an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACK_WEBHOOK_URL", "http://127.0.0.1:9/")
    names = taken_for_granted(page, tmp_path)
    for block in BY_PAGE[page]:
        code = compile(block.text, block.name, "exec")
        names["path"] = "saved.pt" if "torch.save" in block.text else "runs/exp1/checkpoints/step-000010.safetensors"
        if not block.text.startswith(SLOW):
            exec(code, names)
    for value in list(names.values()):
        if isinstance(value, nantrap.Guard):
            value.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", [pytest.param(b, id=b.name) for b in PYTHON if b.text.startswith(SLOW)])
def test_blocks_of_frameworks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same blocks with the real frameworks; `...` stands for the arguments that a Trainer already has."""
    monkeypatch.chdir(tmp_path)
    names = taken_for_granted(block.page, tmp_path)
    if "CheckpointStore" in block.text:
        model, optimizer = names["model"], names["optimizer"]
        names["scheduler"] = scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        (folder,) = re.findall(r'CheckpointStore\("([^"]+)"', block.text)
        nantrap.CheckpointStore(folder).save(step=7, model=model, optimizer=optimizer, scheduler=scheduler)
    for module in ("lightning", "transformers", "accelerate"):
        if f"{module}." in block.text:
            names[module] = pytest.importorskip(module)
            importlib.import_module(f"nantrap.{module}")
    if "Accelerator" in block.text:
        names["Accelerator"] = pytest.importorskip("accelerate").Accelerator
        importlib.import_module("accelerate.state").AcceleratorState._reset_state(reset_partial_state=True)
    exec(compile(block.text.replace("Trainer(..., ", "Trainer(model, "), block.name, "exec"), names)
    assert names.get("step", 7) == 7 or "CheckpointStore" not in block.text


def test_every_exception_is_a_block() -> None:
    unused = [start for start in SLOW if not any(block.text.startswith(start) for block in PYTHON)]
    assert unused == []


# ---- commands


def commands() -> Iterator[tuple[Block, list[str]]]:
    """The commands of console blocks (after `$ `) and of shell blocks (every line)."""
    for block in blocks("console", "sh", ""):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = line.removeprefix("$ ")
            if line.startswith("$ ") or (block.language == "sh" and line.strip()):
                yield block, shlex.split(re.split(r" [|>] ", words)[0], comments=True)


COMMANDS = [pytest.param(words, id=f"{block.name}-{words[0]}") for block, words in commands() if words]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_parse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Options that a page shows are options of the command; nothing is run."""
    if words[0] in LAUNCHERS:
        rest = words[words.index("nantrap") :] if "nantrap" in words else []
    elif words[:2] == ["python", "-m"] and words[2].startswith("nantrap_systems."):
        module = importlib.import_module(words[2])
        if words[2].endswith(".train"):
            script = importlib.import_module("nantrap_systems.script")
            script.make_parser(module.SYSTEM).parse_args(words[3:])
        return
    else:
        rest = words
    if rest[:1] == ["nantrap"]:
        make_parser().parse_args(rest[1:])
    elif rest[:1] == ["python"]:
        script_path = ROOT / rest[1]
        assert script_path.exists() or rest[1] == "train.py", f"{rest[1]} does not exist"
    else:
        assert rest == [], f"unknown command {rest[0]}"


# ---- data


@pytest.mark.parametrize("block", blocks("json"), ids=lambda block: block.name)
def test_json_blocks_are_json(block: Block) -> None:
    json.loads(block.text.replace("...", "").replace("…", ""))


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.name)
def test_yaml_blocks_are_plans(block: Block, tmp_path: Path) -> None:
    assert isinstance(yaml.safe_load(block.text), dict)
    (tmp_path / "stages.yaml").write_text(block.text, encoding="utf-8")
    assert read_expectations(tmp_path / "stages.yaml").stages
