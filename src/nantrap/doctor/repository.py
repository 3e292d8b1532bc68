"""Everything that was read, and which files belong together: a trainer, its launcher and its DeepSpeed file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nantrap.doctor.configuration.setting import Role, Setting, Source

if TYPE_CHECKING:
    from nantrap.doctor.source.module import Module

_FOLDERS_OF_SETTINGS: Final = frozenset(
    [
        "config",
        "configs",
        "conf",
        "cfg",
        "cfgs",
        "accelerate",
        "accelerate_config",
        "accelerate_configs",
        "deepspeed",
        "ds_config",
        "ds_configs",
        "deepspeed_config",
        "deepspeed_configs",
        "scripts",
        "script",
        "launch",
        "launcher",
        "launchers",
        "src",
        "train",
        "training",
        "settings",
        "yaml",
        "hydra",
        "trainer",
        "bin",
        "run",
        "runs",
        "shell",
        "recipes",
        "zero",
        "experiments",
        "experiment",
        "json",
    ]
)
_MANY: Final = 4
"""More configurations than this in one folder are a collection to choose from."""
_Value = TypeVar("_Value")


@dataclass(slots=True)
class Repository:
    """The sources and modules of one examination."""

    sources: list[Source] = field(default_factory=list)
    modules: list[Module] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    """What a check has found out about all files, so that it is found out once."""

    def by_role(self, role: Role) -> list[Source]:
        """Every source with this role."""
        return [source for source in self.sources if source.role == role]

    def partners(self, source: Source, role: Role) -> list[Source]:
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
        self, sources: Sequence[Source], read: Callable[[Source], tuple[_Value, Setting] | None]
    ) -> tuple[_Value, Setting] | None:
        """The value that several sources give, if all that give one agree."""
        found = [each for each in map(read, sources) if each is not None]
        files = [each for each in sources if each.kind != "shell"]
        if len(files) > 1 and any(read(each) is None for each in files):
            return None  # a choice of files, and some of them do not set it: which one is used is not known
        if not found or len({value for value, _ in found}) != 1:
            return None
        return found[0]

    def configured(self, file: str, key: str) -> tuple[Any, Setting] | None:
        """The value of a key in the trainer settings near a file, if they all agree."""
        here = Source(file, "call", ())
        lines = [
            each
            for each in self.by_role("trainer")
            if each.kind == "shell" and _launches(each, here) and each.first(key)
        ]
        near = lines or _nearest(
            here,
            [
                each
                for each in self.by_role("trainer")
                if each.kind != "shell" and each.file != file and each.first(key)
            ],
        )

        def read(source: Source) -> tuple[Any, Setting] | None:
            setting = source.first(key)
            if setting is None or not setting.known or isinstance(setting.value, list):
                return None
            return setting.value, setting

        return self.agreed(near, read)

    def _in_collection(self, source: Source, role: Role) -> bool:
        """Whether a file is one of many configurations in a folder, and does not mention DeepSpeed."""
        if role != "deepspeed" or source.kind not in ("yaml", "json", "toml"):
            return False
        if any("deepspeed" in name or "deepspeed" in str(s.value).lower() for s in source.settings for name in s.names):
            return False
        folder = os.path.dirname(source.file)
        files = {each.file for each in self.by_role("trainer") if os.path.dirname(each.file) == folder}
        return len(files) > _MANY

    def _named(self, source: Source) -> list[str]:
        named = list(source.references)
        for other in self.sources:
            if other.kind == "shell" and other.references and (_launches(other, source) or _is_line(other, source)):
                named += other.references
        return named

    @property
    def clips(self) -> bool:
        """Whether any Python file clips gradients."""
        if "clips" not in self.kept:
            self.kept["clips"] = any(module.clips for module in self.modules if not module.is_test)
        return bool(self.kept["clips"])

    @property
    def names_dtype(self) -> bool:
        """Whether any Python file opens an autocast region with a dtype."""
        if "names_dtype" not in self.kept:
            self.kept["names_dtype"] = any(
                keyword.arg == "dtype"
                for module in self.modules
                if not module.is_test
                for call, place in module.calls.get("autocast", ())
                if not place.silent
                for keyword in call.keywords
            )
        return bool(self.kept["names_dtype"])

    @property
    def scales(self) -> bool:
        """Whether any Python file uses a GradScaler."""
        if "scales" not in self.kept:
            self.kept["scales"] = any(module.scales for module in self.modules if not module.is_test)
        return bool(self.kept["scales"])


def _launches(line: Source, source: Source) -> bool:
    if _is_line(line, source):
        return True
    return bool(line.script) and os.path.basename(line.script) == os.path.basename(source.file)


def _is_line(other: Source, source: Source) -> bool:
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


def _nearest(source: Source, candidates: Sequence[Source]) -> list[Source]:
    reach = [(distance, other) for other in candidates if (distance := _distance(source.file, other.file)) is not None]
    if not reach:
        return []
    least = min(distance for distance, _ in reach)
    return [other for distance, other in reach if distance == least]
