"""Checks of settings: clipping, accumulation and batch size (NT811, NT812, NT819, NT820)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Found, configuration_check
from nantrap.doctor.configuration.precision import computation, is_half
from nantrap.doctor.configuration.setting import Setting, Source
from nantrap.doctor.configuration.values import number, switch, whole
from nantrap.doctor.repository import Repository

WIDE_NORM: Final = 100.0


@configuration_check("NT811", "clip_ineffective")
def clip_ineffective(source: Source, repository: Repository) -> Iterator[Found]:
    """The gradient is clipped at a norm that it never reaches.

    Clipping at 1e6 does nothing: a norm of 1,000 already ruins the weights. It looks like a protection and is none.

    Example:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)

    Why:
        People write a huge number to read the norm without clipping. That is what `float("inf")` is for.

    Fix:
        Clip at 1.0, or write `float("inf")` if only the norm is wanted.

    Silent:
        For `inf`. Low risk where the number is huge and the returned norm is used.
    """
    for each in source.all("clip"):
        norm = number(each.value)
        if norm is None or not WIDE_NORM <= norm < math.inf:
            continue
        yield Found(
            "medium", each.line, each.value, f"{each.name} is {norm:g}: it clips nothing", "clip at 1.0", each.file
        )


@configuration_check("NT812", "clip_missing")
def clip_missing(source: Source, repository: Repository) -> Iterator[Found]:
    """Half precision without gradient clipping.

    One bad batch gives one huge gradient, and one huge gradient is enough. In half precision it happens more often.

    Example:
        bf16: true
        max_grad_norm: 0

    Why:
        0, -1 and null mean "off" in every trainer.

    Fix:
        `max_grad_norm: 1.0`. A healthy run rarely reaches it.

    Silent:
        In full precision, and with Hugging Face's default, which is 1.0. Low risk if the setting is only absent.
    """
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
            yield Found(
                "medium",
                each.line,
                each.value,
                f"{each.name} is {_shown(each.value)}: gradients are not clipped, in half precision",
                "clip at 1.0",
                each.file,
            )
            return
    rate = source.first("lr")
    asked = computation(source)
    if clips or rate is None or asked is None or source.framework == "hf" or source.kind == "composed":
        return
    if source.role == "deepspeed" or repository.clips or source.kind in ("shell", "call") or source.references:
        return
    yield Found(
        "low",
        asked.setting.line,
        asked.setting.value,
        f"training in half precision ({asked.setting.name}), and no setting clips the gradients",
        "clip at 1.0",
        asked.setting.file,
    )


@configuration_check("NT819", "accumulation_mismatch")
def accumulation_mismatch(source: Source, repository: Repository) -> Iterator[Found]:
    """Two files give two numbers for gradient accumulation.

    The loss is divided by one number and the update happens after another, so the effective learning rate is wrong by
    their quotient.

    Example:
        # train.yaml
        gradient_accumulation_steps: 8
        # ds_config.json
        "gradient_accumulation_steps": 4

    Why:
        Trainer, launcher and DeepSpeed each count on their own.

    Fix:
        Write `auto` in the DeepSpeed file, or the same number everywhere.

    Silent:
        When one of them is `auto`.
    """
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
            yield Found(
                "medium",
                mine.line,
                count,
                f"{mine.name} is {count}, and {there.name} is {theirs[0]} ({there.file}:{there.line})",
                "write auto in one of them, or the same number in both",
                mine.file,
            )
            return


@configuration_check("NT820", "batch_size_mismatch")
def batch_size_mismatch(source: Source, repository: Repository) -> Iterator[Found]:
    """The batch size is not what its parts multiply to.

    train batch = micro batch × accumulation × processes. DeepSpeed stops when they disagree, other trainers silently
    train with another batch size than the learning rate was chosen for.

    Example:
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
        # launched on 4 processes: 4 x 2 x 4 = 32

    Why:
        The number of processes changed and the file did not.

    Fix:
        Write `auto` for all but one, or correct the product.

    Silent:
        Unless all four numbers are known.
    """
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
        yield Found(
            "medium",
            whole_batch.line,
            total,
            f"{whole_batch.name} is {total}, but {each_micro} (micro batch) × {each_steps} (accumulation) × "
            f"{processes} (processes) = {product}",
            "write auto for all but one of them",
            whole_batch.file,
        )


def _accumulation(source: Source) -> tuple[int, Setting] | None:
    found = source.first("accumulation")
    count = whole(found.value) if found is not None else None
    return (count, found) if found is not None and count is not None and count >= 1 else None


def _half_launcher(source: Source, repository: Repository) -> bool:
    return any(is_half(each) for each in repository.partners(source, "launcher"))


def _processes(source: Source, repository: Repository) -> int | None:
    """How many processes train: from the source itself, else from its launcher."""
    own = process_count(source)
    if own is not None:
        return own[0]
    found = repository.agreed(repository.partners(source, "launcher"), process_count)
    return found[0] if found is not None else None


def process_count(source: Source) -> tuple[int, Setting] | None:
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
