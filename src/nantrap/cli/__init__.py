"""The command line. A command is a file here with one class: its docstring is the help, `run` gives the exit code.

Exit codes: 0 clean, 1 problems found, 2 wrong use or an error, 3 the guard stopped the run, 130 interrupted. Only the
module of the command that was asked for is imported; none of them imports torch before it runs.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from nantrap._version import __version__
from nantrap.errors import NantrapError, needs_torch
from nantrap.incident.wording import escaped
from nantrap.problems.terminal import Printer, wrapped

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = (
    "run", "demo", "diagnose", "preflight", "doctor", "data", "audit", "check", "report", "plot", "watch", "serve",
    "replay", "explain", "selftest", "completion",
)  # fmt: skip
"""The commands in the order of the help. `run` is the class `RunCommand` in the module `run` of this package."""

_WHAT: Final = "nantrap stops NaN and Inf before they reach the weights, names the guilty operation, proves the cause."
_FIRST: Final = (
    ("my loss is NaN", "nantrap run train.py --your --options"),
    ("it went NaN last night", "nantrap report runs/exp1"),
    ("a run is training now", "nantrap watch runs/exp1"),
    ("the same in a browser, for many runs", "nantrap serve runs"),
    ("is this run healthy?", "nantrap check runs/exp1"),
    ("an old checkpoint", "nantrap audit checkpoints/"),
    ("before training: all of the following", "nantrap diagnose ."),
    ("before training: configuration and code", "nantrap doctor ."),
    ("before training: the model", "nantrap preflight module:factory"),
    ("before training: the data", "nantrap data dataset/"),
    ("a code or a word from a message", "nantrap explain NT203"),
    ("what does all this look like?", "nantrap demo"),
    ("does it work on my GPU?", "nantrap selftest"),
)
"""What `nantrap` alone shows: what to do first, by problem."""


class Command(Protocol):
    """What a command is made of."""

    name: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, and return the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `nantrap` with these arguments (those of the process by default) and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        _show_start(Printer(sys.stderr))
        return 2
    names = (given[0],) if given[0] in COMMANDS else () if given == ["--version"] else COMMANDS
    parser = make_parser(names)
    parsed = parser.parse_args(given)
    try:
        if parsed.command is None:
            parser.print_help(sys.stderr)
            return 2
        return int(parsed.run(parsed))
    except NantrapError as error:
        return _fail(escaped(" ".join(str(error).split()), most=4000))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `nantrap explain | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(escaped(f"{where}{error.strerror or error}", most=4000))
    except Exception as error:  # 1 means that problems were found: a failure of ours must not look like one
        if isinstance(error, ModuleNotFoundError) and (missing := needs_torch(error)):
            return _fail(str(missing))
        if os.environ.get("NANTRAP_DEBUG"):
            raise
        words = escaped(" ".join(str(error).split()), most=1000)
        return _fail(
            f"nantrap itself failed: {type(error).__name__}: {words}",
            "NANTRAP_DEBUG=1 shows where; please report it with the command that you ran",
        )


def _fail(error: str, help: str = "") -> int:
    """Print an error, and what helps; 2, the exit code of it."""
    printer = Printer(sys.stderr)
    printer.line(("error", "bold red"), f": {error}")
    if help:
        printer.line(("help", "bold cyan"), f": {help}")
    return 2


def _show_start(printer: Printer) -> None:
    """Print what nantrap is, and one line for each problem with the command for it."""
    widest = max(len(why) for why, _ in _FIRST)
    printer.line(_WHAT)
    printer.line("")
    printer.line("What to do first:")
    for why, line in _FIRST:
        printer.line((f"  {why:<{widest}}  {line}", ""))
    printer.line("")
    printer.line("`nantrap --help` lists every command, `nantrap COMMAND --help` explains one.")


def make_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of the command line, with these commands."""
    parser = argparse.ArgumentParser(
        prog="nantrap",
        description=_WHAT,
        epilog="`nantrap COMMAND --help` explains one command.",
    )
    parser.add_argument("--version", action="version", version=f"nantrap {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", title="commands")
    for name in names:
        command = _load(name)
        text = inspect.getdoc(command) or ""
        sub = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=_WrappedHelp,
        )
        command.prepare_parser(sub)
        sub.set_defaults(run=command.run)
    return parser


class _WrappedHelp(argparse.HelpFormatter):
    """Help whose paragraphs are wrapped to the terminal; lines that are indented stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(part if part[:1] == " " else "\n".join(wrapped(part, width)) for part in parts)


def _load(name: str) -> Command:
    module = importlib.import_module(f"nantrap.cli.{name}")
    command: Command = getattr(module, f"{name.capitalize()}Command")()
    assert command.name == name
    return command
