"""`examine(paths)`: read every file, run every check, put the report together.

The report has a status, too: what each file sets, and whether trainer and launcher agree.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from nantrap.doctor.checks import CONFIGURATION, SOURCE
from nantrap.doctor.checks.registry import RegisteredCheck, Sighting
from nantrap.doctor.configuration.names import declared_names
from nantrap.doctor.configuration.precision import computation, weights
from nantrap.doctor.configuration.setting import Setting, SettingSource, first_by_role, number, switch
from nantrap.doctor.configuration.shell_file import read_shell
from nantrap.doctor.configuration.tree import Branch, UnreadableSettingsError, composed, resolved, settings_of
from nantrap.doctor.configuration.tree_files import read_tree
from nantrap.doctor.evidence import judged
from nantrap.doctor.files import Text, read_files
from nantrap.doctor.report import SEVERITY_OF, DoctorReport, Fact, LeftOut
from nantrap.doctor.repository import Repository, framework_of, sources_of, split_python
from nantrap.doctor.source.module import Module, is_test, read_module
from nantrap.problems import Problem, ProblemPlace
from nantrap.problems.problem import SEVERITIES


class StatusRow(NamedTuple):
    """A row of the status: its name in JSON, its title, and the settings it shows, the first that a source has.

    `always` says whether it stands in the status of every file, or only of those that set it.
    """

    name: str
    title: str
    keys: tuple[str, ...]
    is_number: bool = True
    always: bool = True


_LINE: Final = re.compile(r"\bline \d+")
_IGNORE: Final = re.compile(r"nantrap:\s*ignore(?:\[([^\]]*)\])?")
_STATUS: Final = (
    StatusRow("mixed_precision", "mixed precision", ()),
    StatusRow("lr", "learning rate", ("lr",)),
    StatusRow("min_lr", "smallest lr", ("min_lr",)),
    StatusRow("warmup", "warm-up", ("warmup_steps", "warmup_ratio", "warmup_epochs", "warmup")),
    StatusRow("clip", "clipping", ("clip",)),
    StatusRow("accumulation", "accumulation", ("accumulation",)),
    StatusRow("batch_size", "batch size", ("micro_batch", "batch_size", "global_batch")),
    StatusRow("optimizer", "optimizer", ("optimizer",), is_number=False),
    StatusRow("distributed_type", "distributed type", ("distributed_type",), is_number=False),
    StatusRow("devices", "devices", ("gpu_ids", "processes"), is_number=False),
    StatusRow("temperature", "temperature", ("temperature",), always=False),
    StatusRow("student_temperature", "student temp", ("student_temperature",), always=False),
    StatusRow("teacher_temperature", "teacher temp", ("teacher_temperature",), always=False),
    StatusRow("beta", "beta", ("beta",), always=False),
    StatusRow("streams", "streams", ("streams",), always=False),
)
_SHORT: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "no": "no", "amp": "amp, dtype not named"}
_DISAGREEMENTS: Final = frozenset({"NT801", "NT802", "NT804", "NT806", "NT819", "NT820"})


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
        return _examined(paths, {**declared_names(), **(names or {})})
    finally:
        if collecting:
            gc.enable()


def _examined(paths: Sequence[str], names: Mapping[str, str]) -> tuple[DoctorReport, Repository]:
    """Read all files, compose their settings and run every check."""
    notes: list[LeftOut] = []
    texts: dict[str, Text] = {}
    repository = Repository()
    trees: dict[str, Branch] = {}
    for text in read_files(paths, notes):
        texts[text.file] = text
        repository.roots[text.file] = text.root
        if not text.interesting:
            if text.kind == "python" and not is_test(text.file, text.root):
                repository.others[text.file] = text.text
            continue
        try:
            if text.kind == "python":
                _read_python(text, repository, names)
            elif text.kind == "shell":
                launched = read_shell(text.text, file=text.file, extra=names)
                repository.sources += [replace(e, framework=e.framework or framework_of(e.settings)) for e in launched]
            else:
                trees[text.file] = read_tree(text.text, text.kind)
        except UnreadableSettingsError as error:
            notes.append(LeftOut(text.file, str(error), error.line))
        except SyntaxError as error:
            notes.append(LeftOut(text.file, f"not Python: {error.msg}", error.lineno))
        except (RecursionError, ValueError, MemoryError) as error:
            notes.append(LeftOut(text.file, f"cannot be read: {type(error).__name__}: {error}"))
    _add_trees(trees, texts, repository, names, notes)
    lines = {file: text.text.splitlines() for file, text in texts.items() if "nantrap:" in text.text}
    seen = [each for each in _deduplicated(_run(repository)) if not ignored(each, lines.get(each.place.file, ()))]
    findings = _joined(seen)
    status, facts = status_of(repository.sources)
    return (
        DoctorReport(tuple(texts), status, tuple(facts), tuple(alignment_of(findings)), tuple(findings), tuple(notes)),
        repository,
    )


def _read_python(text: Text, repository: Repository, names: Mapping[str, str]) -> None:
    """Add a Python file and its settings to the repository, unless it is a test or written for another library."""
    if is_test(text.file, text.root):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        module = read_module(text.text, file=text.file, root=text.root, extra=names)
    if module.is_foreign:
        return
    repository.modules.append(module)
    for source in module.settings.sources:
        repository.sources += split_python(source)


def _add_trees(
    trees: Mapping[str, Branch],
    texts: Mapping[str, Text],
    repository: Repository,
    names: Mapping[str, str],
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
                repository.sources.append(SettingSource(file, "composed", settings, framework=framework_of(settings)))
        except (UnreadableSettingsError, RecursionError) as error:
            notes.append(LeftOut(file, str(error)))
    for file, tree in trees.items():
        kind = texts[file].kind
        try:
            settings = settings_of(resolved(tree), file=file, extra=names)
        except (UnreadableSettingsError, RecursionError) as error:
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
                yield _finding(check, found, source.file, None, repository)
    for module in repository.modules:
        for check in SOURCE:
            try:
                seen = list(check.function(module, repository))
            except RecursionError:
                continue  # an expression nested a thousand deep; the other checks still run
            for found in seen:
                yield _finding(check, found, module.file, module, repository)


def _finding(
    check: RegisteredCheck, found: Sighting, file: str, module: Module | None, repository: Repository
) -> Problem:
    """What a check saw as a finding, with the risk that it is printed with."""
    whole = replace(found, risk=found.risk or check.risk, fix=found.fix or check.fix)
    risk, message = judged(whole, check.row.code, file, module, repository)
    place = ProblemPlace(found.file or file, found.line)
    return Problem(check.row.code, SEVERITY_OF[risk], message, whole.fix, {"value": found.value}, place, check.row.slug)


def _deduplicated(findings: Iterable[Problem]) -> list[Problem]:
    best: dict[tuple[str, ProblemPlace], Problem] = {}
    for finding in findings:
        key = (finding.code, finding.place)
        if key not in best or SEVERITIES.index(finding.severity) < SEVERITIES.index(best[key].severity):
            best[key] = finding
    return sorted(best.values(), key=lambda each: (each.place.file, each.place.line, each.code))


def _joined(findings: Iterable[Problem]) -> list[Problem]:
    """One finding for those that say the same of several places: the first one, with the places of the others.

    The number of another line in a sentence makes no difference.
    """
    alike: dict[tuple[str, ...], list[Problem]] = {}
    for each in findings:
        alike.setdefault((each.code, each.severity, _LINE.sub("", each.message), each.fix), []).append(each)
    return [
        replace(first, data={**first.data, "places": tuple(each.place for each in others)}) if others else first
        for first, *others in alike.values()
    ]


def ignored(finding: Problem, lines: Sequence[str]) -> bool:
    """Whether a comment on the finding's line, or alone on the line above, says to leave it out."""
    own = finding.place.line
    for at in (own, own - 1):
        if not 1 <= at <= len(lines):
            continue
        line = lines[at - 1]
        if at != own and not line.lstrip().startswith(("#", "//")):
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


def status_of(sources: Sequence[SettingSource]) -> tuple[dict[str, dict[str, Any]], list[Fact]]:
    """What each file sets, by file, and the same as rows with their places."""
    table: dict[str, dict[str, Any]] = {}
    facts: list[Fact] = []
    for source in sources:
        if source.kind == "composed":
            continue
        row = table.get(source.file, {})
        for shown in _STATUS:
            found = _setting_of(source, shown) if row.get(shown.name) is None else None
            if found is not None:
                row[shown.name] = found.value if shown.keys else _precision(source)
                facts.append(Fact(shown.title, row[shown.name], found.file, found.line))
        for name, title in (("amp", "AMP"), ("fp16", "fp16")):
            setting = next((each for each in source.all(name) if switch(each.value) is not None), None)
            if setting is not None:
                facts.append(Fact(title, switch(setting.value), setting.file, setting.line))
        if row:
            table[source.file] = row
    always = [shown.name for shown in _STATUS if shown.always]
    return {file: {**dict.fromkeys(always), **row} for file, row in table.items()}, facts


def alignment_of(findings: Sequence[Problem]) -> list[str]:
    """Where the files contradict each other, one sentence each; empty if they are aligned."""
    return [f"{each.place.file}:{each.place.line}: {each.message}" for each in findings if each.code in _DISAGREEMENTS]


def _setting_of(source: SettingSource, shown: StatusRow) -> Setting | None:
    """The setting of a source that a row of the status shows."""
    if not shown.keys:
        asked = computation(source) or weights(source)
        return None if asked is None else asked.setting
    for key in shown.keys:
        setting = first_by_role(source, key)
        if setting is None or not setting.known or setting.value is None or isinstance(setting.value, (list, bool)):
            continue
        every = key == "gpu_ids" and str(setting.value).lower() == "all"
        if not every and (not shown.is_number or number(setting.value) is not None):
            return setting
    return None


def _precision(source: SettingSource) -> str:
    heavy = weights(source)
    asked = computation(source)
    if asked is None or (heavy is not None and heavy.setting is asked.setting):
        assert heavy is not None
        return f"{_SHORT[heavy.dtype]}-true"
    return _SHORT[asked.dtype]
