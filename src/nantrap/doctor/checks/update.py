"""Checks of clipping, accumulation and batch size, in settings and in code (NT811, NT812, NT819, NT820)."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.precision import computation, is_half
from nantrap.doctor.configuration.setting import Setting, SettingSource, number, whole
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import keyword_of
from nantrap.doctor.source.module import Module

_WIDE_NORM: Final = 100.0


@configuration_check("clip_ineffective", "medium", "clip at 1.0")
def clip_ineffective(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The gradient is clipped at a norm that it never reaches."""
    for each in source.all("clip"):
        norm = number(each.value)
        if norm is not None and _WIDE_NORM <= norm < math.inf:
            yield Sighting.at(each, f"{each.name} is {norm:g}: it clips nothing")


@source_check("clip_ineffective", "medium", 'write float("inf") if only the norm is wanted, else 1.0')
def clip_call_ineffective(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`clip_grad_norm_` with a norm that is never reached."""
    for call, place in module.sites("clip_grad_norm_", "clip_grad_norm"):
        managed = isinstance(call.func, ast.Attribute) and not module.resolve(call.func).startswith("torch")
        given = keyword_of(call, "max_norm") or (call.args[1] if len(call.args) > 1 else None)
        if given is None and managed and len(call.args) == 1:
            given = call.args[0]
        norm = number(place.function.value(given))
        if norm is not None and _WIDE_NORM <= norm < math.inf:
            read = not isinstance(place.statement, ast.Expr) and norm >= 1e4
            words = f"gradients are clipped at a norm of {norm:g}: it clips nothing"
            yield Sighting(call.lineno, norm, words, "low" if read else None)


@configuration_check("clip_missing", "medium", "clip at 1.0")
def clip_missing(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Half precision without gradient clipping."""
    if source.role in ("launcher", "code") or source.kind in ("argparse", "optimizer"):
        return
    if not is_half(source) and not any(map(is_half, repository.partners(source, "launcher"))):
        return
    clips = list(source.all("clip"))
    clipped = any((number(each.value) or 0) > 0 for each in clips)
    for each in clips:
        norm = number(each.value)
        if not clipped and each.known and (each.value in (None, False) or (norm is not None and norm <= 0)):
            shown = "null" if each.value is None else str(each.value).lower()
            yield Sighting.at(each, f"{each.name} is {shown}: gradients are not clipped, in half precision")
            return
    asked = computation(source)
    if clips or source.first("lr") is None or asked is None or source.framework == "hf" or source.kind == "composed":
        return
    if source.role == "deepspeed" or repository.clips or source.kind in ("shell", "call") or source.references:
        return
    words = f"training in half precision ({asked.setting.name}), and no setting clips the gradients"
    yield Sighting.at(asked.setting, words, risk="low")


@configuration_check("accumulation_mismatch", "medium", "write auto in one of them, or the same number in both")
def accumulation_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Two files give two numbers for gradient accumulation."""
    mine = _accumulation(source)
    if mine is None or source.role not in ("trainer", "code", "launcher"):
        return
    if source.kind == "argparse" and any(line.kind == "shell" and line.script for line in repository.sources):
        return
    others = repository.partners(source, "deepspeed")
    if source.role != "launcher":
        others = [*repository.partners(source, "launcher"), *others]
    if source.role == "trainer":
        others += [each for each in repository.by_role("code") if each.file == source.file]
    count, here = mine
    for role in ("launcher", "deepspeed", "code"):
        theirs = repository.agreed([each for each in others if each.role == role], _accumulation)
        if theirs is not None and theirs[0] != count:
            there = theirs[1]
            words = f"{here.name} is {count}, and {there.name} is {theirs[0]} ({there.file}:{there.line})"
            yield Sighting(here.line, count, words, file=here.file)
            return


@configuration_check("batch_size_mismatch", "medium", "write auto for all but one of them")
def batch_size_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The batch size is not what its parts multiply to."""
    whole_batch = source.first("global_batch")
    micro = source.first("micro_batch") or (source.first("batch_size") if source.role != "deepspeed" else None)
    steps = source.first("accumulation")
    if source.role == "deepspeed" and whole_batch is not None:
        trainers = [each for each in repository.by_role("trainer") if each.first("micro_batch")]
        users = [each for each in trainers if source in repository.partners(each, "deepspeed")]
        if len(users) == 1:  # what the file leaves to the trainer
            micro = micro if micro is not None and micro.known else users[0].first("micro_batch")
            steps = steps if steps is not None and steps.known else users[0].first("accumulation")
    if whole_batch is None:
        return
    processes = _processes(source, repository)
    total, each_micro, each_steps = (whole(each.value) if each else None for each in (whole_batch, micro, steps))
    if not total or not each_micro or not each_steps or not processes or min(total, each_micro, each_steps) < 1:
        return
    product = each_micro * each_steps * processes
    if product != total:
        words = f"{each_micro} (micro batch) × {each_steps} (accumulation) × {processes} (processes) = {product}"
        message = f"{whole_batch.name} is {total}, but {words}"
        yield Sighting(whole_batch.line, total, message, file=whole_batch.file)


def _accumulation(source: SettingSource) -> tuple[int, Setting] | None:
    found = source.first("accumulation")
    count = whole(found.value) if found is not None else None
    return (count, found) if found is not None and count is not None and count >= 1 else None


def _processes(source: SettingSource, repository: Repository) -> int | None:
    """How many processes train: from the source itself, else from its launcher."""
    found = _process_count(source) or repository.agreed(repository.partners(source, "launcher"), _process_count)
    return found[0] if found is not None else None


def _process_count(source: SettingSource) -> tuple[int, Setting] | None:
    """The number of processes that a source names: all of them with Accelerate, those of a node times nodes else."""
    setting = source.first("processes")
    if setting is None or isinstance(setting.value, bool):
        return None
    value = setting.value
    if isinstance(value, str) and "," in value:
        value = [part for part in value.split(",") if part.strip()]
    count = len(value) if isinstance(value, list) else whole(value)
    nodes = source.first("nodes")
    several = (
        whole(nodes.value) if nodes is not None and setting.names[-1] not in ("num_processes", "world_size") else 1
    )
    return (count * several, setting) if count and count >= 1 and several else None
