"""Checks of clipping, accumulation and batch size, in settings and in code (NT811, NT812, NT819, NT820)."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.precision import computation, is_half
from nantrap.doctor.configuration.setting import Setting, SettingSource, number, switch, whole
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.module import Module

_WIDE_NORM: Final = 100.0


@configuration_check("clip_ineffective")
def clip_ineffective(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The gradient is clipped at a norm that it never reaches."""
    for each in source.all("clip"):
        norm = number(each.value)
        if norm is None or not _WIDE_NORM <= norm < math.inf:
            continue
        yield Sighting.at(each, "medium", f"{each.name} is {norm:g}: it clips nothing", "clip at 1.0")


@source_check("clip_ineffective")
def clip_call_ineffective(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`clip_grad_norm_` with a norm that is never reached."""
    for call, place in module.sites("clip_grad_norm_", "clip_grad_norm"):
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        managed = isinstance(call.func, ast.Attribute) and not module.resolve(call.func).startswith("torch")
        given = keywords.get("max_norm") or (call.args[1] if len(call.args) > 1 else None)
        if given is None and managed and len(call.args) == 1:
            given = call.args[0]
        norm = number(module.value(given, place.function)) if given is not None else None
        if norm is None or not _WIDE_NORM <= norm < math.inf:
            continue
        used = not isinstance(place.statement, ast.Expr)
        yield Sighting(
            "low" if used and norm >= 1e4 else "medium",
            call.lineno,
            norm,
            f"gradients are clipped at a norm of {norm:g}: it clips nothing",
            'write float("inf") if only the norm is wanted, else 1.0',
        )


@configuration_check("clip_missing")
def clip_missing(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Half precision without gradient clipping."""
    if source.role in ("launcher", "code") or source.kind in ("argparse", "optimizer"):
        return
    half = is_half(source) or _half_launcher(source, repository)
    if not half:
        return
    clips = list(source.all("clip"))
    for each in clips:
        norm = number(each.value)
        off = each.value is None or each.value is False or (norm is not None and norm <= 0)
        if off and each.known and not any((number(other.value) or 0) > 0 for other in clips):
            yield Sighting.at(
                each,
                "medium",
                f"{each.name} is {_shown(each.value)}: gradients are not clipped, in half precision",
                "clip at 1.0",
            )
            return
    rate = source.first("lr")
    asked = computation(source)
    if clips or rate is None or asked is None or source.framework == "hf" or source.kind == "composed":
        return
    if source.role == "deepspeed" or repository.clips or source.kind in ("shell", "call") or source.references:
        return
    yield Sighting.at(
        asked.setting,
        "low",
        f"training in half precision ({asked.setting.name}), and no setting clips the gradients",
        "clip at 1.0",
    )


@configuration_check("accumulation_mismatch")
def accumulation_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Two files give two numbers for gradient accumulation."""
    if source.role not in ("trainer", "code", "launcher"):
        return
    mine = source.first("accumulation")
    count = whole(mine.value) if mine is not None else None
    if mine is None or count is None or count < 1:
        return
    if source.kind == "argparse" and any(line.kind == "shell" and line.script for line in repository.sources):
        return
    others = repository.partners(source, "deepspeed")
    if source.role != "launcher":
        others = [*repository.partners(source, "launcher"), *others]
    if source.role == "trainer":
        others += [each for each in repository.by_role("code") if each.file == source.file]
    for role in ("launcher", "deepspeed", "code"):
        theirs = repository.agreed([each for each in others if each.role == role], _accumulation)
        if theirs is not None and theirs[0] != count:
            there = theirs[1]
            yield Sighting(
                "medium",
                mine.line,
                count,
                f"{mine.name} is {count}, and {there.name} is {theirs[0]} ({there.file}:{there.line})",
                "write auto in one of them, or the same number in both",
                mine.file,
            )
            return


@configuration_check("batch_size_mismatch")
def batch_size_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The batch size is not what its parts multiply to."""
    whole_batch = source.first("global_batch")
    micro = source.first("micro_batch") or (source.first("batch_size") if source.role != "deepspeed" else None)
    steps = source.first("accumulation")
    if source.role == "deepspeed" and whole_batch is not None:
        users = [
            each
            for each in repository.by_role("trainer")
            if each.first("micro_batch") and source in repository.partners(each, "deepspeed")
        ]
        if len(users) == 1:  # what the file leaves to the trainer
            micro = micro if micro is not None and micro.known else users[0].first("micro_batch")
            steps = steps if steps is not None and steps.known else users[0].first("accumulation")
    if whole_batch is None or micro is None or steps is None:
        return
    processes = _processes(source, repository)
    numbers = [whole(each.value) for each in (whole_batch, micro, steps)]
    total, each_micro, each_steps = numbers
    if (
        processes is None
        or total is None
        or each_micro is None
        or each_steps is None
        or min(total, each_micro, each_steps) < 1
    ):
        return
    product = each_micro * each_steps * processes
    if product != total:
        yield Sighting(
            "medium",
            whole_batch.line,
            total,
            f"{whole_batch.name} is {total}, but {each_micro} (micro batch) × {each_steps} (accumulation) × "
            f"{processes} (processes) = {product}",
            "write auto for all but one of them",
            whole_batch.file,
        )


def _accumulation(source: SettingSource) -> tuple[int, Setting] | None:
    found = source.first("accumulation")
    count = whole(found.value) if found is not None else None
    return (count, found) if found is not None and count is not None and count >= 1 else None


def _half_launcher(source: SettingSource, repository: Repository) -> bool:
    return any(is_half(each) for each in repository.partners(source, "launcher"))


def _processes(source: SettingSource, repository: Repository) -> int | None:
    """How many processes train: from the source itself, else from its launcher."""
    own = process_count(source)
    if own is not None:
        return own[0]
    found = repository.agreed(repository.partners(source, "launcher"), process_count)
    return found[0] if found is not None else None


def process_count(source: SettingSource) -> tuple[int, Setting] | None:
    """The number of processes that a source names: all of them with Accelerate, those of a node times nodes else."""
    setting = source.first("processes")
    if setting is None:
        return None
    value = setting.value
    count = len(value) if isinstance(value, list) else whole(value)
    if isinstance(value, str) and count is None and "," in value:
        count = len([part for part in value.split(",") if part.strip()])
    if count is None or count < 1 or isinstance(value, bool):
        return None
    nodes = source.first("nodes")
    several = whole(nodes.value) if nodes is not None else 1
    if setting.names[-1] in ("num_processes", "world_size"):
        several = 1
    return (count * several, setting) if several else None


def _shown(value: object) -> str:
    return "null" if value is None else str(switch(value)).lower() if isinstance(value, bool) else str(value)
