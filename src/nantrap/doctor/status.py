"""The status: what each file sets, and whether trainer and launcher agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nantrap.doctor.configuration.precision import computation, weights
from nantrap.doctor.configuration.setting import Setting, Source
from nantrap.doctor.configuration.values import number, switch
from nantrap.doctor.report import Fact
from nantrap.problems import Problem

FIELDS: Final = (
    "mixed_precision",
    "lr",
    "min_lr",
    "warmup",
    "clip",
    "accumulation",
    "batch_size",
    "optimizer",
    "distributed_type",
    "devices",
)
_KEYS: Final = {
    "lr": ("lr",),
    "min_lr": ("min_lr",),
    "warmup": ("warmup_steps", "warmup_ratio", "warmup_epochs", "warmup"),
    "clip": ("clip",),
    "accumulation": ("accumulation",),
    "batch_size": ("micro_batch", "batch_size", "global_batch"),
    "optimizer": ("optimizer",),
    "distributed_type": ("distributed_type",),
    "devices": ("gpu_ids", "processes"),
}
_SHORT: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "no": "no", "amp": "amp, dtype not named"}
_TITLES: Final = {
    "amp": "AMP",
    "fp16": "fp16",
    "lr": "learning rate",
    "mixed_precision": "mixed precision",
    "distributed_type": "distributed type",
    "devices": "devices",
    "min_lr": "smallest lr",
    "warmup": "warm-up",
    "clip": "clipping",
    "accumulation": "accumulation",
    "batch_size": "batch size",
    "optimizer": "optimizer",
}
_DISAGREEMENTS: Final = frozenset({"NT801", "NT802", "NT804", "NT806", "NT819", "NT820"})


def status_of(sources: Sequence[Source]) -> tuple[dict[str, dict[str, Any]], list[Fact]]:
    """What each file sets, by file, and the same as rows with their places."""
    table: dict[str, dict[str, Any]] = {}
    facts: list[Fact] = []
    for source in sources:
        if source.kind == "composed":
            continue
        row = table.get(source.file, {})
        for name, found in _row(source):
            if row.get(name) is None:
                row[name] = found.value if name != "mixed_precision" else _precision(source)
                title = _TITLES[name]
                facts.append(Fact(title, row[name], found.file, found.line))
        for name in ("amp", "fp16"):
            setting = next((each for each in source.all(name) if switch(each.value) is not None), None)
            if setting is not None:
                facts.append(Fact(_TITLES[name], switch(setting.value), setting.file, setting.line))
        if row:
            table[source.file] = row
    whole = {file: {name: row.get(name) for name in FIELDS} for file, row in table.items()}
    return whole, facts


def alignment_of(findings: Sequence[Problem]) -> list[str]:
    """Where the files contradict each other, one sentence each; empty if they are aligned."""
    return [f"{each.place.file}:{each.place.line}: {each.message}" for each in findings if each.code in _DISAGREEMENTS]


def _row(source: Source) -> list[tuple[str, Setting]]:
    """The settings of a source that the overview shows, by the names of its columns."""
    found: list[tuple[str, Setting]] = []
    asked = computation(source) or weights(source)
    if asked is not None:
        found.append(("mixed_precision", asked.setting))
    for name, keys in _KEYS.items():
        for key in keys:
            setting = source.first(key)
            if setting is None or not setting.known or setting.value is None or isinstance(setting.value, (list, bool)):
                continue
            if (
                name in ("lr", "min_lr", "clip", "accumulation", "batch_size", "warmup")
                and number(setting.value) is None
            ):
                continue
            if name == "devices" and key == "gpu_ids" and str(setting.value).lower() == "all":
                continue
            found.append((name, setting))
            break
    return found


def _precision(source: Source) -> str:
    heavy = weights(source)
    asked = computation(source)
    if asked is None or (heavy is not None and heavy.setting is asked.setting):
        assert heavy is not None
        return f"{_SHORT[heavy.dtype]}-true"
    return _SHORT[asked.dtype]
