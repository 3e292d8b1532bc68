"""Which files are read, and what is reported about those that are not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nantrap.doctor.report import LeftOut
from nantrap.errors import UsageError

KINDS: Final = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".jsonc": "json",
    ".json5": "json",
    ".toml": "toml",
    ".py": "python",
    ".sh": "shell",
    ".bash": "shell",
    ".slurm": "shell",
    ".sbatch": "shell",
    ".zsh": "shell",
}
LARGEST: Final = 2_000_000
"""Bytes. No person writes a longer configuration; what is longer is data."""

_LEFT_OUT: Final = frozenset([
    ".git", ".hg", ".svn", ".venv", "venv", "env", "node_modules", "__pycache__", "site-packages", ".mypy_cache",
    ".ruff_cache", ".pytest_cache", ".tox", ".nox", "dist", "build", ".eggs", ".idea", ".vscode", "wandb", "mlruns",
    ".github",
])  # fmt: skip
_SETTINGS: Final = re.compile(
    r"(?i)(?<![a-z])(lr|learning_?rate|max_lr|base_lr|fp16|bf16|bfloat16|amp|mixed_precision|precision|torch_?dtype|dtype|optim\w*|opt|"
    r"\w*clip\w*|max_grad_norm|gradient_\w+|accum\w*|warmup\w*|temp\w*|\w+_temp|zero_optimization|train_micro_batch_size_per_gpu|"
    r"compute_environment|min_lr|loss_scale|betas?|eps|max_steps|save_steps|save_total_limit|logging_nan_inf_filter|resume\w*|"
    r"batch_size|devices|num_processes|keep_\w+|defaults)(?![a-z])"
)
_PYTHON: Final = re.compile(
    r"torch|Trainer|Accelerator|argparse|einsum|deepspeed|loss|softmax|sigmoid|backward|nan|grad|-inf|sqrt|std|clamp"
)


@dataclass(frozen=True, slots=True)
class Text:
    """A file that was read. `root` is the path that was given, `asked` whether the file itself was given."""

    file: str
    kind: str
    text: str
    root: str
    asked: bool

    @property
    def interesting(self) -> bool:
        """Whether anything in it can matter; a cheap test that saves parsing most files."""
        if self.kind == "python":
            return self.asked or _PYTHON.search(self.text) is not None or _SETTINGS.search(self.text) is not None
        return self.asked or self.kind == "shell" or _SETTINGS.search(self.text) is not None


def read_files(paths: Sequence[str], notes: list[LeftOut]) -> Iterator[Text]:
    """Every file of the kinds that are known. What cannot be read becomes a note and never an error.

    Raises:
        UsageError: A path does not exist.
    """
    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"{path}: there is no such file or folder")
    seen: set[str] = set()
    for path in paths:
        if os.path.isdir(path):
            for file in _walk(path, notes):
                yield from _read(file, path, seen, notes, asked=False)
        else:
            yield from _read(path, path, seen, notes, asked=True)


def _walk(folder: str, notes: list[LeftOut]) -> Iterator[str]:
    """The files of known kinds below a folder, in order; folders that cannot be read are noted."""

    def refused(error: OSError) -> None:
        notes.append(LeftOut(str(error.filename), f"cannot be read: {error.strerror}"))

    for at, folders, files in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.endswith(".egg-info"))
        for name in sorted(files):
            if os.path.splitext(name)[1].lower() in KINDS:
                yield os.path.normpath(os.path.join(at, name))


def _read(file: str, root: str, seen: set[str], notes: list[LeftOut], *, asked: bool) -> Iterator[Text]:
    """The text of a file, once; noted and left out if it is too large or not text."""
    identity = os.path.realpath(file)
    if identity in seen:
        return
    seen.add(identity)
    kind = KINDS.get(os.path.splitext(file)[1].lower())
    try:
        status = os.stat(file)
        if not os.path.isfile(file):
            notes.append(LeftOut(file, "is not a regular file"))
            return
        if status.st_size > LARGEST:
            if asked or kind != "json" or status.st_size > 50 * LARGEST:
                notes.append(
                    LeftOut(file, f"{status.st_size:,} bytes: left out, no configuration or source file is that long")
                )
            return
        with open(file, "rb") as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        notes.append(LeftOut(file, f"cannot be read: {error.strerror or error}"))
        return
    if b"\0" in data[:8192]:
        notes.append(LeftOut(file, "is binary: left out"))
        return
    if kind is None:
        notes.append(LeftOut(file, f"is of no kind that is read ({', '.join(sorted(KINDS))})"))
        return
    text = data.decode("utf-8-sig", errors="replace")
    if text.count("\ufffd") > max(20, len(text) // 20):
        notes.append(LeftOut(file, "is not text: left out"))
        return
    yield Text(file, kind, text.replace("\r\n", "\n").replace("\r", "\n"), root, asked)
