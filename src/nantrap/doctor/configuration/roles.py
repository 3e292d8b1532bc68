"""What a file is for: a trainer's settings, a launcher's (Accelerate), DeepSpeed's; and which framework reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from nantrap.doctor.configuration.setting import Kind, Setting, Source

_DEEPSPEED: Final = ("zero_optimization", "train_micro_batch_size_per_gpu")
_HF: Final = frozenset({"per_device_train_batch_size", "logging_nan_inf_filter"})
_LIGHTNING: Final = frozenset(
    [
        "accelerator",
        "devices",
        "precision",
        "gradient_clip_val",
        "accumulate_grad_batches",
        "strategy",
        "num_nodes",
        "enable_checkpointing",
    ]
)


def sources_of(settings: Sequence[Setting], *, file: str, kind: Kind) -> list[Source]:
    """The sources of a file's settings; a DeepSpeed section inside another file is a separate source."""
    found: list[Source] = []
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
        return [*found, Source(file, kind, tuple(rest), "launcher", "accelerate", references=references)]
    return [*found, Source(file, kind, tuple(rest), "trainer", framework_of(rest), references=references)]


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


def split_python(source: Source) -> list[Source]:
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


def _deepspeed(settings: Sequence[Setting], depth: int, *, file: str, kind: Kind) -> Source:
    parts = []
    for each in settings:
        names = each.names[depth:]
        key = "global_batch" if names == ("train_batch_size",) else each.key
        parts.append(replace(each, names=names, path=each.path[depth:], key=key))
    return Source(file, kind, tuple(parts), "deepspeed", "deepspeed", settings[0].line)
