"""Write what `nantrap data`, `preflight`, `doctor` and `audit --show` print into their pages.

    python docs/command_outputs.py

The example of `preflight` is the Python block of its page, saved as `train.py`. The files that the others read are
written here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from running import printed

COMMANDS = Path(__file__).parent / "commands"


def write_example_data(folder: Path) -> None:
    """A dataset with one fault of many kinds: an array with labels, token ids, and photos."""
    from PIL import Image

    rng = np.random.default_rng(0)
    (folder / "data" / "photos").mkdir(parents=True)
    x, labels = rng.normal(size=(2000, 64)).astype(np.float32), rng.integers(0, 10, 2000)
    x[417, 3], x[1203], x[1500], labels[9] = np.nan, 1e4 * x[1203], x[20], 10
    np.savez(folder / "data" / "train.npz", x=x, labels=labels)
    lines = []
    for number in range(300):
        ids, mask = rng.integers(0, 1000, 24).tolist(), [1] * 24
        if number == 77:
            ids[3] = 32_000
        lines.append(json.dumps({"input_ids": ids, "attention_mask": [0] * 24 if number == 42 else mask}))
    (folder / "data" / "texts.jsonl").write_text("\n".join([*lines, lines[0][:40]]))
    for number in range(41):
        path = folder / "data" / "photos" / f"{number:03}.png"
        pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels if number != 40 else np.full_like(pixels, 9)).save(path)
        if number == 7:
            path.write_bytes(path.read_bytes()[:200])


def write_example_factory(folder: Path) -> None:
    """The factory that the page of `preflight` shows."""
    text = (COMMANDS / "preflight.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# train\.py\n.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    (folder / "train.py").write_text(found[1], encoding="utf-8")


PROJECT = {
    "accelerate.yaml": """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
gpu_ids: "1,2"
mixed_precision: bf16
""",
    "radio_train_m.yaml": """\
trainer:
  lr: 1e-5          # reduced from 5e-5
  min_lr: 1e-6
  amp: True
  fp16: False
  resume_milestone: 10
""",
    "train.py": """\
import torch
from torch.nn.utils import clip_grad_norm_


def train(model, optimizer, scaler, loader):
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(batch).mean()
        if torch.isnan(loss):
            continue
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
}
"""The files of the project that the page of `doctor` examines."""


def write_example_project(folder: Path) -> None:
    """Settings of a trainer and of its launcher that contradict each other, and a training loop with two faults."""
    for name, text in PROJECT.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_example_checkpoint(folder: Path) -> None:
    """A checkpoint with one bad value in `alpha`."""
    import torch

    (folder / "run").mkdir()
    state = {"block.weight": torch.ones(2, 2), "block.alpha": torch.tensor([0.5, float("inf")])}
    torch.save({"model": state}, folder / "run" / "a.pt")


class Example(NamedTuple):
    """A command whose output a page shows below it, and the function that writes what it reads.

    With `begin`, the page shows `...` for the lines before the one that begins so.
    """

    page: str
    command: str
    write: Callable[[Path], None]
    begin: str = ""


EXAMPLES = (
    Example("data.md", "nantrap data data --classes 10 --vocab 1000 --quarantine bad-samples.json", write_example_data),
    Example("preflight.md", "nantrap preflight train:make", write_example_factory),
    Example("doctor.md", "nantrap doctor", write_example_project),
    Example(
        "doctor.md",
        "nantrap doctor radio_train_m.yaml --suggest conservative",
        write_example_project,
        begin="# learning rate",
    ),
    Example("audit.md", 'nantrap audit run/a.pt --show "*.alpha"', write_example_checkpoint),
)


def shown_output(example: Example) -> str:
    """What the page shows now."""
    return _block(example).search((COMMANDS / example.page).read_text(encoding="utf-8"))[1]  # type: ignore[index]


def output_of(example: Example, folder: Path, *options: str) -> str:
    """What the command prints, on a terminal of 80 columns.

    Args:
        example: the command.
        folder: where its files are written and it is run.
        options: more of them.
    """
    example.write(folder)
    command = [sys.executable, "-m", *shlex.split(example.command), *options]
    done = printed(command, folder, {**os.environ, "COLUMNS": "80"})
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    if example.begin:
        first = next(number for number, line in enumerate(lines) if line.startswith(example.begin))
        lines = ["...", *lines[first:]]
    return "\n".join(lines)


def _block(example: Example) -> re.Pattern[str]:
    return re.compile(rf"^\$ {re.escape(example.command)}\n(.*?)\n```$", flags=re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run all of them."""
    for example in EXAMPLES:
        path = COMMANDS / example.page
        with tempfile.TemporaryDirectory() as folder:
            output = output_of(example, Path(folder))
        new = f"$ {example.command}\n{output}\n```"
        path.write_text(_block(example).sub(lambda _, new=new: new, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
