"""`examine(paths)`: read every file, run every check, put the report together."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nantrap.doctor.checks import CONFIGURATION, SOURCE, Sighting
from nantrap.doctor.configuration.hydra import composed, resolved
from nantrap.doctor.configuration.json_file import read_json
from nantrap.doctor.configuration.roles import framework_of, sources_of, split_python
from nantrap.doctor.configuration.setting import Source
from nantrap.doctor.configuration.shell_file import read_shell
from nantrap.doctor.configuration.toml_file import read_toml
from nantrap.doctor.configuration.tree import Branch, UnreadableError, settings_of
from nantrap.doctor.configuration.yaml_file import read_yaml
from nantrap.doctor.files import Text, read_files
from nantrap.doctor.report import SEVERITY_OF, DoctorReport, LeftOut
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.module import Module, read_module
from nantrap.doctor.status import alignment_of, status_of
from nantrap.incident.checks import CheckCode
from nantrap.problems import Problem, ProblemPlace
from nantrap.problems.problem import SEVERITIES

_IGNORE: Final = re.compile(r"nantrap:\s*ignore(?:\[([^\]]*)\])?")


def examine(paths: Sequence[str] = (".",), *, names: Mapping[str, str] | None = None) -> DoctorReport:
    """Read files and folders and report what is wrong with their settings and their training code. Nothing is run.

    Args:
        paths: files and folders.
        names: more names of settings and what they mean: `{"step_size": "lr"}`.

    Raises:
        UsageError: A path does not exist.
    """
    report, _ = examine_repository(paths, names=names)
    return report


def examine_repository(
    paths: Sequence[str], *, names: Mapping[str, str] | None = None
) -> tuple[DoctorReport, Repository]:
    """The report, and everything it was made from."""
    collecting = gc.isenabled()
    gc.disable()  # syntax trees are many small objects, which the collector would walk over again and again
    try:
        return _examined(paths, names)
    finally:
        if collecting:
            gc.enable()


def _examined(paths: Sequence[str], names: Mapping[str, str] | None) -> tuple[DoctorReport, Repository]:
    """Read all files, compose their settings and run every check."""
    notes: list[LeftOut] = []
    texts: dict[str, Text] = {}
    repository = Repository()
    trees: dict[str, Branch] = {}
    for text in read_files(paths, notes):
        texts[text.file] = text
        if not text.interesting:
            continue
        try:
            if text.kind == "python":
                _read_python(text, repository, names)
            elif text.kind == "shell":
                repository.sources += read_shell(text.text, file=text.file, extra=names)
            else:
                trees[text.file] = _read_tree(text)
        except UnreadableError as error:
            notes.append(LeftOut(text.file, str(error), error.line))
        except SyntaxError as error:
            notes.append(LeftOut(text.file, f"not Python: {error.msg}", error.lineno))
        except (RecursionError, ValueError, MemoryError) as error:
            notes.append(LeftOut(text.file, f"cannot be read: {type(error).__name__}: {error}"))
    _add_trees(trees, texts, repository, names, notes)
    lines = {file: text.text.splitlines() for file, text in texts.items() if "nantrap:" in text.text}
    findings = [each for each in _deduplicated(_run(repository)) if not ignored(each, lines.get(each.place.file, ()))]
    status, facts = status_of(repository.sources)
    return (
        DoctorReport(tuple(texts), status, tuple(facts), tuple(alignment_of(findings)), tuple(findings), tuple(notes)),
        repository,
    )


def _read_tree(text: Text) -> Branch:
    if text.kind == "json":
        return read_json(text.text)
    return read_toml(text.text) if text.kind == "toml" else read_yaml(text.text)


def _read_python(text: Text, repository: Repository, names: Mapping[str, str] | None) -> None:
    """Add a Python file and its settings to the repository; of a test only the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        module = read_module(text.text, file=text.file, root=text.root, extra=dict(names) if names else None)
    repository.modules.append(module)
    if module.is_test:
        return
    for source in module.settings.sources:
        repository.sources += split_python(source)


def _add_trees(
    trees: Mapping[str, Branch],
    texts: Mapping[str, Text],
    repository: Repository,
    names: Mapping[str, str] | None,
    notes: list[LeftOut],
) -> None:
    """Add the configuration files as sources: composed by Hydra where they are, else each alone."""
    taken: set[str] = set()
    raw = {file: text.text for file, text in texts.items()}
    for file in trees:
        try:
            whole = composed(file, trees, raw) if texts[file].kind == "yaml" else None
            if whole is not None:
                settings = settings_of(whole, file=file, extra=names)
                taken |= {each.file for each in settings} | {file}
                repository.sources.append(Source(file, "composed", settings, framework=framework_of(settings)))
        except (UnreadableError, RecursionError) as error:
            notes.append(LeftOut(file, str(error)))
    for file, tree in trees.items():
        kind = texts[file].kind
        try:
            settings = settings_of(resolved(tree), file=file, extra=names)
        except (UnreadableError, RecursionError) as error:
            notes.append(LeftOut(file, str(error), getattr(error, "line", None)))
            continue
        if file in taken:
            continue  # its values count through the composition
        assert kind in ("yaml", "json", "toml")
        repository.sources += sources_of(settings, file=file, kind=kind)  # type: ignore[arg-type]


def _run(repository: Repository) -> Iterable[Problem]:
    """The findings of every check on every source and module."""
    for source in list(repository.sources):
        for check in CONFIGURATION:
            for found in check.function(source, repository):
                yield _finding(check.row, source.file, found)
    for module in repository.modules:
        if module.is_test:
            continue
        yield from _run_module(module, repository)


def _run_module(module: Module, repository: Repository) -> Iterable[Problem]:
    for check in SOURCE:
        try:
            found = list(check.function(module, repository))
        except RecursionError:
            continue  # an expression nested a thousand deep; the other checks still run
        for each in found:
            yield _finding(check.row, module.file, each)


def _finding(row: CheckCode, file: str, seen: Sighting) -> Problem:
    place = ProblemPlace(seen.file or file, seen.line)
    return Problem(row.code, SEVERITY_OF[seen.risk], seen.message, seen.fix, {"value": seen.value}, place, row.slug)


def _deduplicated(findings: Iterable[Problem]) -> list[Problem]:
    best: dict[tuple[str, ProblemPlace], Problem] = {}
    for finding in findings:
        key = (finding.code, finding.place)
        if key not in best or SEVERITIES.index(finding.severity) < SEVERITIES.index(best[key].severity):
            best[key] = finding
    return sorted(best.values(), key=lambda each: (each.place.file, each.place.line, each.code))


def ignored(finding: Problem, lines: Sequence[str]) -> bool:
    """Whether a comment on the finding's line, or alone on the line above, says to leave it out."""
    own = finding.place.line
    for number in (own, own - 1):
        if not 1 <= number <= len(lines):
            continue
        line = lines[number - 1]
        if number != own and not line.lstrip().startswith(("#", "//")):
            continue
        found = _IGNORE.search(line)
        if found is None:
            continue
        listed = found.group(1)
        if listed is None or {finding.code.lower(), finding.title} & {
            part.strip().lower() for part in listed.split(",")
        }:
            return True
    return False
