"""`nantrap diagnose`: everything that can be checked in a project before it trains, in one report."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nantrap.errors import NantrapError, UsageError
from nantrap.problems.terminal import Printer

SCHEMA: Final = "nantrap.diagnose/1"
FACTORY: Final = "nantrap_preflight"
"""The file, and the module, in which the factory of a project is looked for; its function is `make`."""
_TORCH: Final = frozenset({".pt", ".pth", ".ckpt", ".bin", ".safetensors"})
_NO_DATA: Final = frozenset({"image", "jsonl"})
"""Found in every project, as pictures and logs: they are checked if --data names them."""
_PARAMETERS: Final = frozenset({"weight", "bias"})
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "quarantine", "incidents"})
_HARMLESS: Final = ("nothing of high risk", "bold green")
_WORDS: Final = {
    0: ("ok", "bold green"), 1: ("problems", "bold red"), 2: ("error", "bold red"), None: ("not checked", "dim"),
}  # fmt: skip
_TEMPLATE: Final = '''\
"""What `nantrap diagnose` and `nantrap preflight nantrap_preflight:make` test before training."""


def make():
    """Return the parts of one training step, made as the training script makes them."""
    raise NotImplementedError("nantrap_preflight.py is still the template: return your own model here")
    # model = MyModel(config)
    # return {
    #     "model": model,
    #     "optimizer": torch.optim.AdamW(model.parameters(), lr=config.lr),
    #     "batch": next(iter(train_loader)),
    #     "loss": lambda model, batch: loss_function(model(batch["x"]), batch["y"]),
    # }
'''


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the commands: its arguments, or why it has nothing to check."""

    command: str
    subject: str
    arguments: Sequence[str] = ()
    why_not: str = ""


class DiagnoseCommand:
    """Check a project before training: settings and code, checkpoints, data and the model, in one report.

    FOLDER (default: this one) is what `nantrap doctor` reads. Torch and safetensors files in it that hold a model or
    an optimizer go to `nantrap audit`; files of plain tensors, .npy, .npz, .parquet, .csv, .h5 and .tar go to
    `nantrap data`. If it has a file nantrap_preflight.py, its function make() is run by `nantrap preflight`: that is
    your own code; --init writes a template. Exit code 0: no part found a problem; 1: one did; 2: wrong use, or a part
    could not be checked.
    """

    name = "diagnose"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap diagnose`."""
        add = parser.add_argument
        add("folder", nargs="?", default=".", metavar="FOLDER", help="the project (default: the current folder)")
        add(
            "--factory",
            metavar="MODULE:FUNCTION",
            help=f"what preflight tests (default: {FACTORY}:make, if it is there)",
        )
        add("--checkpoints", action="append", metavar="PATH", help="audit this instead of what FOLDER holds")
        add("--data", action="append", metavar="PATH", help="check this instead of what FOLDER holds")
        add("--init", action="store_true", help=f"write {FACTORY}.py, a factory to fill in, and check nothing")
        add("--json", action="store_true", help="print all reports as one JSON document on stdout")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run every part and print its report, then one line for each; gives the worst exit code."""
        folder = Path(arguments.folder)
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder")
        if arguments.init:
            return _write_template(folder / f"{FACTORY}.py")
        parts = _parts(folder, arguments)
        printer = Printer(sys.stderr if arguments.json else sys.stdout)
        found: list[tuple[_Part, int | None, Any]] = []
        with _importable(folder):
            for part in parts:
                printer.line((f"── {part.subject}", "bold"), f" (nantrap {part.command})")
                if part.why_not:
                    printer.line(part.why_not)
                    found.append((part, None, None))
                    continue
                found.append((part, *_run(part, as_json=arguments.json)))
        code = max((each for _, each, _ in found if each is not None), default=0)
        printer.line(("── result", "bold"))
        for part, each, _ in found:
            words = _HARMLESS if part.command == "doctor" and each == 0 else _WORDS[each]
            printer.line(f"  {part.subject:<20} ", words)
        if arguments.json:
            reports = {
                part.command: {"exit_code": each, "why_not": part.why_not or None, "report": document}
                for part, each, document in found
            }
            print(json.dumps({"schema": SCHEMA, "folder": str(folder), "exit_code": code, "parts": reports}, indent=2))
        return code


def _command(folder: Path) -> str:
    """What to type to check this folder."""
    return shlex.join(["nantrap", "diagnose", *([] if folder == Path() else [str(folder)])])


def _write_template(path: Path) -> int:
    if path.exists():
        raise UsageError(f"{path} exists; nothing is overwritten")
    path.write_text(_TEMPLATE, encoding="utf-8")
    print(f"{path}: return your model, optimizer, batch and loss there, then run {_command(path.parent)}")
    return 0


def _parts(folder: Path, arguments: argparse.Namespace) -> list[_Part]:
    """What there is to check: what was given, else what the folder holds."""
    models, data = _files(folder)
    models, data = arguments.checkpoints or models, arguments.data or data
    factory = arguments.factory or (f"{FACTORY}:make" if (folder / f"{FACTORY}.py").is_file() else "")
    no_factory = (
        f"no {FACTORY}.py: `{_command(folder)} --init` writes one to fill in, or give --factory module:function"
    )
    return [
        _Part("doctor", "settings and code", [str(folder)]),
        _Part("audit", "checkpoints", models, "" if models else "no checkpoint was found; --checkpoints names one"),
        _Part("data", "data", data, "" if data else "no data file was found; --data names one"),
        _Part("preflight", "model", [factory], "" if factory else no_factory),
    ]


def _files(folder: Path) -> tuple[list[str], list[str]]:
    """Checkpoints and data files below a folder."""
    from nantrap.doctor.data.readers import format_of

    models, data = [], []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if each not in _PASSED_OVER and not each.startswith("."))
        for name in sorted(names):
            path = os.path.normpath(os.path.join(place, name))
            if os.path.splitext(name)[1] in _TORCH and not _is_data(path):
                models.append(path)
            elif format_of(path) not in (None, *_NO_DATA):
                data.append(path)
    return models, data


def _is_data(path: str) -> bool:
    """Whether a torch file holds data: tensors by plain names, which are none of a module's parameters."""
    from nantrap.checkpoints.audit.files import LocalSource
    from nantrap.checkpoints.audit.readers import read_contents

    try:
        with LocalSource(path) as source:
            contents = read_contents(source)
    except (NantrapError, OSError):
        return False  # the audit says what is wrong with it
    keys = [tensor.path for extent in contents.extents for tensor in extent.tensors]
    return all(len(key) < 2 and not any("." in name or name in _PARAMETERS for name in key) for key in keys)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The factory of a project imports the modules beside it."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def _run(part: _Part, *, as_json: bool) -> tuple[int, Any]:
    """Run a command as it would be typed: its exit code and, if asked, its report."""
    from nantrap.cli import main

    given = [part.command, *(["--json"] if as_json else []), *part.arguments]
    if not as_json:
        with contextlib.redirect_stderr(sys.stdout):  # one report on one stream
            return main(given), None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = main(given)
    return code, json.loads(said.getvalue()) if said.getvalue().strip() else None
