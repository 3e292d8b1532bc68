"""`nantrap doctor`: settings and source code, checked before a run. No code of the user is executed."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from nantrap.errors import UsageError
from nantrap.incident.wording import counted, escaped
from nantrap.problems.terminal import Printer

if TYPE_CHECKING:
    from nantrap.doctor.frozen import FrozenShare
    from nantrap.doctor.report import DoctorReport
    from nantrap.doctor.repository import Repository

LEVELS = ("conservative", "very-conservative", "scale-up")


class DoctorCommand:
    """Check training settings and training code for what leads to NaN. Nothing in a file is executed.

    PATH is a file or a folder (default: this one). It reads YAML, JSON, TOML, Hydra folders, DeepSpeed and Accelerate
    files, Python (constants, dicts, argparse defaults, calls that take settings, training loops) and launch lines in
    shell scripts. First the settings in force are shown, then what is wrong with them, with risk and fix. A comment
    `# nantrap: ignore[NT851]` silences a line. `--install MODULE:FACTORY`, as preflight takes it, is the exception: it
    runs one step of your own code to see whether a batch fits into memory. Exit code 0: nothing of high risk; 1:
    something; 2: wrong use.
    """

    name = "doctor"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The arguments of `nantrap doctor`."""
        add = parser.add_argument
        add("paths", nargs="*", metavar="PATH", default=["."], help="files and folders (default: the current folder)")
        add("--format", choices=("text", "json", "sarif", "github"), default="text", help="how to print the report")
        add("--json", action="store_true", help="the same as --format json")
        add("--names", metavar="FILE", help="YAML or JSON with more names of settings, e.g. step_size: lr")
        add("--suggest", choices=LEVELS, help="print safer (or, after a stable run, bolder) settings as a patch")
        add("--fix", action="store_true", help="apply the patch after showing it; the old file is kept as FILE.bak")
        add("--checkpoint", metavar="FILE", help="count the weights that a pure bf16 update cannot move")
        add(
            "--install",
            action="store_true",
            help="check this installation instead; with MODULE:FACTORY also whether one batch fits into memory",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Examine the paths and print the report in the chosen format; 1 if it has a finding of high risk."""
        if arguments.install:
            factory = next((path for path in arguments.paths if ":" in path), "")
            return _install(factory, as_json=arguments.json or arguments.format == "json")
        from nantrap.doctor.examine import examine_repository
        from nantrap.doctor.report import as_github, as_lines, as_sarif

        kind = "json" if arguments.json else arguments.format
        names = _mapping(arguments.names) if arguments.names else None
        report, repository = examine_repository(arguments.paths, names=names)
        if kind == "text":
            Printer(sys.stdout).lines(as_lines(report))
        else:
            if kind == "json":
                document = report.to_dict()
                if arguments.checkpoint:
                    document["frozen"] = [each.to_dict() for each in _frozen(arguments.checkpoint, repository)]
                print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
            elif text := as_sarif(report) if kind == "sarif" else as_github(report):
                print(text)
            printer = Printer(sys.stderr)
            for note in report.notes:
                printer.line(escaped(f"note: {note.file}: {note.message}", most=1000))
        if arguments.checkpoint and kind == "text":
            for each in _frozen(arguments.checkpoint, repository):
                what = f"{each.share:.1%} of {each.weights:,} weights cannot move in pure bfloat16"
                print(f"{arguments.checkpoint}: at a learning rate of {each.rate:g}, {what}")
        if arguments.suggest or arguments.fix:
            _suggest(arguments, report, repository, quiet=kind != "text")
        return report.exit_code


def _suggest(arguments: argparse.Namespace, report: DoctorReport, repository: Repository, *, quiet: bool) -> None:
    """Print the changes of settings as a patch, and apply it if asked."""
    from nantrap.doctor.suggest import apply_edits, edits_for, patch_of

    edits = edits_for(report, repository, level=arguments.suggest)
    out = sys.stderr if quiet else sys.stdout
    if not edits:
        print("no setting to change was found", file=out)
        return
    for note in dict.fromkeys(each.why for each in edits):
        print(f"# {note}", file=out)
    print(patch_of(edits), end="", file=out)
    if arguments.fix:
        for file, backup in apply_edits(edits):
            print(f"{file} changed; the old one is {backup}", file=out)


def _frozen(path: str, repository: Repository) -> list[FrozenShare]:
    from nantrap.doctor.configuration.setting import number
    from nantrap.doctor.frozen import frozen_share

    found = {number(setting.value) for source in repository.sources for setting in source.all("lr")}
    rates = sorted(rate for rate in found if rate is not None and 0 < rate < 1) or [1e-5, 5e-5, 1e-4]
    return frozen_share(path, rates[:8])


def _mapping(path: str) -> dict[str, str]:
    """The user's names of settings."""
    from nantrap.doctor.configuration.names import MEANINGS, plain
    from nantrap.doctor.configuration.tree import UnreadableSettingsError, leaves
    from nantrap.doctor.configuration.tree_files import read_yaml

    try:
        with open(path, encoding="utf-8") as stream:
            tree = read_yaml(stream.read())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnreadableSettingsError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error
    found = {}
    for names, leaf in leaves(tree):
        if leaf.value not in MEANINGS:
            raise UsageError(
                f"{path}:{leaf.line}: {leaf.value} is not a known setting; known are {', '.join(sorted(MEANINGS))}"
            )
        found[".".join(plain(part) for name in names for part in name.split("."))] = str(leaf.value)
    return found


def _install(factory: str, *, as_json: bool) -> int:
    """Print versions, devices and extras of this installation; 1 if there is a problem."""
    from nantrap.doctor.install import as_dict, examine_installation

    rows = examine_installation(factory)
    if as_json:
        print(json.dumps(as_dict(rows), indent=2))
    else:
        printer = Printer(sys.stdout)
        group = ""
        for row in rows:
            if row.group != group:
                group = row.group
                printer.line((group, "bold"))
            mark = ("missing" if row.found == "missing" else "problem", "bold red") if row.problem else ("ok", "green")
            printer.line(f"  {row.name:<14} ", mark, f"  {row.found}" + (f": {row.problem}" if row.problem else ""))
            if row.fix:
                printer.line(("    fix", "cyan"), f": {row.fix}")
        wrong = sum(bool(row.problem) for row in rows)
        printer.line(counted(wrong, "problem") if wrong else "nothing is missing")
    return 1 if any(row.problem for row in rows) else 0
