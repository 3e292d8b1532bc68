"""Everything that was read: what each file is for, and which belong together.

A file has a trainer's settings, a launcher's (Accelerate) or DeepSpeed's; some framework reads it; a launch line starts
a script. The value of a name in code comes from the code, from the lines that start it, or from settings near it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeVar

from nantrap.doctor.configuration.names import plain
from nantrap.doctor.configuration.setting import UNKNOWN, Setting, SettingSource, SourceKind, SourceRole
from nantrap.doctor.source.expressions import name_of
from nantrap.doctor.source.module import Function, Module, parts_inside

_FOLDERS_OF_SETTINGS: Final = frozenset([
    "config", "configs", "conf", "cfg", "cfgs", "accelerate", "accelerate_config", "accelerate_configs", "deepspeed",
    "ds_config", "ds_configs", "deepspeed_config", "deepspeed_configs", "scripts", "script", "launch", "launcher",
    "launchers", "src", "train", "training", "settings", "yaml", "hydra", "trainer", "bin", "run", "runs", "shell",
    "recipes", "zero", "experiments", "experiment", "json",
])  # fmt: skip
_DEEPSPEED: Final = ("zero_optimization", "train_micro_batch_size_per_gpu")
_HF: Final = frozenset({"per_device_train_batch_size", "logging_nan_inf_filter"})
_LIGHTNING: Final = frozenset([
    "accelerator", "devices", "precision", "gradient_clip_val", "accumulate_grad_batches", "strategy", "num_nodes",
    "enable_checkpointing",
])  # fmt: skip
_MANY: Final = 4
"""More configurations than this in one folder are a collection to choose from."""
_FEW: Final = 3
"""More files of one kind than this are experiments, of which one may be run with a launcher of its own."""
_Value = TypeVar("_Value")


@dataclass
class Repository:
    """The sources and modules of one examination."""

    sources: list[SettingSource] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    """The Python files that may train with PyTorch: no tests, and nothing written for another library."""
    others: dict[str, str] = field(default_factory=dict)
    """The text of Python files in which no check can find anything: they may call what is in the others."""
    roots: dict[str, str] = field(default_factory=dict)
    """The path that was asked for, by the file that was found there."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What a check has found out about all files, so that it is found out once."""

    def inside(self, file: str) -> list[str]:
        """The folders around a file below the path that was asked for, and its name."""
        return parts_inside(file, self.roots.get(file, ""))

    def by_role(self, role: SourceRole) -> list[SettingSource]:
        """Every source with this role."""
        return [source for source in self.sources if source.role == role]

    def partners(self, source: SettingSource, role: SourceRole) -> list[SettingSource]:
        """The launchers or DeepSpeed files that a source runs with.

        A file that is named (`--config_file`, `deepspeed="zero2.json"`) is taken; else the nearest one in the folders
        of the same project. Nearest ones may be several: a value counts only where they agree, see `agreed`.
        """
        candidates = [other for other in self.by_role(role) if other is not source]
        if role == "deepspeed" and any(each.key == "deepspeed" and each.value is None for each in source.settings):
            return []  # `deepspeed:` without a value
        if not candidates:
            return []
        if source.role == "deepspeed":
            naming = [each for each in candidates if any(_is_file(source.file, name) for name in each.references)]
            if naming:
                return naming
        named = self._named(source)
        if named:
            chosen = [other for other in candidates if any(_is_file(other.file, name) for name in named)]
            flags = [other for other in candidates if other.kind == "shell" and _launches(other, source)]
            if chosen or flags:
                return [*chosen, *flags]
            if role == "deepspeed":
                return []
        if self._in_collection(source, role):
            return []
        lines = [other for other in candidates if other.kind == "shell"]
        launching = [other for other in lines if _launches(other, source)]
        if launching and any(other.settings for other in launching):
            files = [other for other in candidates if other.kind != "shell"]
            return [*launching, *_nearest(source, files)]
        return _nearest(source, [other for other in candidates if other.kind != "shell"])

    def agreed(
        self, sources: Sequence[SettingSource], read: Callable[[SettingSource], tuple[_Value, Setting] | None]
    ) -> tuple[_Value, Setting] | None:
        """The value that several sources give, if all that give one agree."""
        found = [each for each in map(read, sources) if each is not None]
        files = [each for each in sources if each.kind != "shell"]
        if len(files) > 1 and any(read(each) is None for each in files):
            return None  # a choice of files, and some of them do not set it: which one is used is not known
        if not found or len({value for value, _ in found}) != 1:
            return None
        return found[0]

    def runs_with(self, source: SettingSource, role: SourceRole) -> bool:
        """Whether it is plain which launcher or DeepSpeed file a source runs with.

        One names the other or a line launches it, or there is only one of the role and few sources to run with it.
        """
        candidates = [other for other in self.by_role(role) if other is not source]
        if self._named(source) or any(other.kind == "shell" and _launches(other, source) for other in candidates):
            return True
        if any(_is_file(source.file, name) for each in candidates for name in each.references):
            return True
        alike = {each.file for each in self.by_role(source.role) if each.kind == source.kind}
        return len({each.file for each in candidates}) == 1 and len(alike) <= _FEW

    def _in_collection(self, source: SettingSource, role: SourceRole) -> bool:
        """Whether a file is one of many configurations in a folder, and does not mention DeepSpeed."""
        if role != "deepspeed" or source.kind not in ("yaml", "json", "toml"):
            return False
        if any("deepspeed" in name or "deepspeed" in str(s.value).lower() for s in source.settings for name in s.names):
            return False
        folder = os.path.dirname(source.file)
        files = {each.file for each in self.by_role("trainer") if os.path.dirname(each.file) == folder}
        return len(files) > _MANY

    def _named(self, source: SettingSource) -> list[str]:
        named = list(source.references)
        for other in self.sources:
            if other.kind == "shell" and other.references and (_launches(other, source) or _is_line(other, source)):
                named += other.references
        return named

    @cached_property
    def clips(self) -> bool:
        """Whether any Python file clips gradients."""
        return any(module.clips for module in self.modules)

    @cached_property
    def names_dtype(self) -> bool:
        """Whether any Python file opens an autocast region with a dtype."""
        calls = [call for module in self.modules for call, _ in module.sites("autocast")]
        return any(keyword.arg == "dtype" for call in calls for keyword in call.keywords)

    @cached_property
    def scales(self) -> bool:
        """Whether any Python file uses a GradScaler."""
        return any(module.scales for module in self.modules)


def _launches(line: SettingSource, source: SettingSource) -> bool:
    if _is_line(line, source):
        return True
    return bool(line.script) and os.path.basename(line.script) == os.path.basename(source.file)


def _is_line(other: SettingSource, source: SettingSource) -> bool:
    return other.kind == source.kind == "shell" and other.file == source.file and other.line == source.line


def _is_file(path: str, name: str) -> bool:
    wanted = os.path.normpath(name).lstrip("./")
    return path == wanted or path.endswith(os.sep + wanted) or os.path.basename(path) == os.path.basename(wanted)


def _project(path: str) -> tuple[str, ...]:
    """The folder of a file without the folders that people put settings into."""
    parts = [part for part in os.path.dirname(path).split(os.sep) if part not in ("", ".")]
    while parts and parts[-1].lower() in _FOLDERS_OF_SETTINGS:
        parts.pop()
    return tuple(parts)


def _distance(one: str, other: str) -> int | None:
    """How far two files are apart; None if neither's project lies in the other's."""
    first, second = _project(one), _project(other)
    short, long = sorted((first, second), key=len)
    if long[: len(short)] != short:
        return None
    apart = len(os.path.relpath(os.path.dirname(other) or ".", os.path.dirname(one) or ".").split(os.sep))
    return (len(long) - len(short)) * 10 + (0 if os.path.dirname(one) == os.path.dirname(other) else apart)


def _nearest(source: SettingSource, candidates: Sequence[SettingSource]) -> list[SettingSource]:
    reach = [(distance, other) for other in candidates if (distance := _distance(source.file, other.file)) is not None]
    if not reach:
        return []
    least = min(distance for distance, _ in reach)
    return [other for distance, other in reach if distance == least]


def sources_of(settings: Sequence[Setting], *, file: str, kind: SourceKind) -> list[SettingSource]:
    """The sources of a file's settings; a DeepSpeed section inside another file is a separate source."""
    found: list[SettingSource] = []
    rest = list(settings)
    for prefix in sorted(_deepspeed_sections(settings), key=len, reverse=True):
        inside = [each for each in rest if each.names[: len(prefix)] == prefix]
        rest = [each for each in rest if each.names[: len(prefix)] != prefix]
        if inside:
            found.append(_deepspeed(inside, len(prefix), file=file, kind=kind))
    if not rest:
        return found
    tops = {each.names[0] for each in rest}
    references = tuple(
        str(each.value)
        for each in rest
        if each.key == "deepspeed" and isinstance(each.value, str) and each.value.endswith((".json", ".yaml", ".yml"))
    )
    if "compute_environment" in tops:
        return [*found, SettingSource(file, kind, tuple(rest), "launcher", "accelerate", references=references)]
    return [*found, SettingSource(file, kind, tuple(rest), "trainer", framework_of(rest), references=references)]


def framework_of(settings: Sequence[Setting]) -> str:
    """`hf`, `lightning`, or nothing if the names do not show it."""
    leaves = {each.names[-1] for each in settings}
    if leaves & _HF:
        return "hf"
    if any(
        len(each.names) == 2 and each.names[0] in ("trainer", "fit") and each.names[1] in _LIGHTNING
        for each in settings
    ):
        return "lightning"
    return ""


def split_python(source: SettingSource) -> list[SettingSource]:
    """A Python source with its DeepSpeed sections taken out, and HF's names recognised."""
    if source.kind in ("optimizer", "argparse"):
        return [source]
    parts = sources_of(source.settings, file=source.file, kind=source.kind)
    if len(parts) == 1 and parts[0].role != "deepspeed":
        framework = source.framework or (parts[0].framework if source.kind != "argparse" else "")
        return [replace(source, framework=framework)]
    return [
        part if part.role == "deepspeed" else replace(source, settings=part.settings, references=source.references)
        for part in parts
    ]


def _deepspeed_sections(settings: Sequence[Setting]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for each in settings:
        for name in _DEEPSPEED:
            if name in each.names:
                found.add(each.names[: each.names.index(name)])
    return found


def _deepspeed(settings: Sequence[Setting], depth: int, *, file: str, kind: SourceKind) -> SettingSource:
    parts = []
    for each in settings:
        names = each.names[depth:]
        key = "global_batch" if names == ("train_batch_size",) else each.key
        parts.append(replace(each, names=names, path=each.path[depth:], key=key))
    return SettingSource(file, kind, tuple(parts), "deepspeed", "deepspeed", settings[0].line)


def possible_values(function: Function, node: ast.expr, repository: Repository) -> list[Any]:
    """The values that an expression can have, as far as they are known."""
    if isinstance(node, ast.IfExp):
        return [value for side in (node.body, node.orelse) for value in possible_values(function, side, repository)]
    given = function.given(node)
    if given is not None:
        return possible_values(function, given, repository)
    value = resolved_value(function, node, repository)
    return [] if value is UNKNOWN else [value]


def resolved_value(function: Function, node: ast.expr, repository: Repository) -> Any:
    """A value in the code, else the value in the settings near the file under the same name."""
    module, value, leaf = function.module, function.value(node), plain(name_of(node))
    if value is not UNKNOWN and not isinstance(value, list):
        override = _from_lines(module, repository, leaf) if leaf in module.settings.defaults else UNKNOWN
        return value if override is UNKNOWN else override
    if not leaf:
        return UNKNOWN
    found = {
        repr(setting.value): setting.value
        for source in repository.by_role("trainer")
        if source.file != module.file
        for setting in source.settings
        if setting.names[-1] == leaf and setting.known
    }
    return next(iter(found.values())) if len(found) == 1 else UNKNOWN


def _from_lines(module: Module, repository: Repository, name: str) -> Any:
    """The value that shell scripts give this setting when they start the module; unknown if they differ."""
    here = SettingSource(module.file, "call", ())
    lines = [each for each in repository.sources if each.kind == "shell" and _launches(each, here)]
    found = [each.value for line in lines for each in line.settings if each.names[-1] == name and each.known]
    return found[0] if len({repr(each) for each in found}) == 1 else UNKNOWN


def configured_value(module: Module, repository: Repository, key: str) -> Any:
    """What a key is set to: in the file itself, in a launch line, in the settings near it, or as argparse's default."""

    def known(source: SettingSource) -> tuple[Any, Setting] | None:
        setting = source.first(key)
        is_plain = setting is not None and setting.known and not isinstance(setting.value, list)
        return (setting.value, setting) if setting is not None and is_plain else None

    here = SettingSource(module.file, "call", ())
    trainers = [each for each in repository.by_role("trainer") if each.first(key)]
    lines = [each for each in trainers if each.kind == "shell" and _launches(each, here)]
    files = [each for each in trainers if each.kind != "shell" and each.file != module.file]
    own = [(each.kind, *found) for each in repository.sources if each.file == module.file and (found := known(each))]
    written = [value for kind, value, _ in own if kind != "argparse" and value is not None]
    beside = repository.agreed(lines or _nearest(here, files), known)
    defaults = [value for kind, value, _ in own if kind == "argparse"]
    return next(iter([*written, *([beside[0]] if beside is not None else []), *defaults]), UNKNOWN)
