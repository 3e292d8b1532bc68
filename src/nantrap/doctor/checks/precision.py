"""Checks of settings: which precision, and whether every part asks for the same (NT801-NT807)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Found, configuration_check
from nantrap.doctor.configuration.precision import Asked, computation, half_flags
from nantrap.doctor.configuration.setting import Setting, Source
from nantrap.doctor.configuration.values import number, precision, says_no, switch
from nantrap.doctor.repository import Repository

_SHORT: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_ROLES: Final = {"trainer": "the trainer", "launcher": "the launcher", "deepspeed": "DeepSpeed", "code": "the code"}


def asked_dtype(source: Source) -> tuple[str, Setting] | None:
    """The dtype that a source names, for comparison with another source."""
    asked = computation(source)
    return (asked.dtype, asked.setting) if asked is not None and asked.dtype in _SHORT else None


@configuration_check("NT801", "precision_mismatch")
def precision_mismatch(source: Source, repository: Repository) -> Iterator[Found]:
    """The trainer, the launcher and DeepSpeed name different dtypes.

    Each of them can switch mixed precision on. When they name different dtypes, one of them wins, and which one depends
    on the versions: the run may use fp16 without loss scaling although a file says bf16.

    Example:
        # accelerate.yaml
        compute_environment: LOCAL_MACHINE
        mixed_precision: bf16

        # train.yaml
        fp16: true

    Why:
        The trainer exports its own choice to the launcher's environment or overrides it. DeepSpeed keeps its own
        loss scaler, which the trainer does not know about.

    Fix:
        Name the same dtype in every file, or write `auto` in the DeepSpeed file.

    Silent:
        When one of them is unset, `no` or `auto`.
    """
    if source.role == "launcher":
        pairs = repository.partners(source, "deepspeed")
    elif source.role in ("trainer", "code"):
        pairs = [*repository.partners(source, "launcher"), *repository.partners(source, "deepspeed")]
    else:
        return
    mine = asked_dtype(source)
    if mine is None or (source.kind == "argparse" and _overridden(source, mine[1], repository)):
        return
    for role in ("launcher", "deepspeed"):
        theirs = repository.agreed([each for each in pairs if each.role == role], asked_dtype)
        if theirs is not None and theirs[0] != mine[0]:
            there = theirs[1]
            yield Found(
                "high",
                mine[1].line,
                mine[1].value,
                f"{_ROLES[source.role]} asks for {_SHORT[mine[0]]} ({mine[1].name}), {_ROLES[role]} for "
                f"{_SHORT[theirs[0]]} ({there.name} at {there.file}:{there.line})",
                f"name {_SHORT[theirs[0]]} in both, or leave one of them out",
                mine[1].file,
            )
            return


@configuration_check("NT802", "both_half_flags")
def both_half_flags(source: Source, repository: Repository) -> Iterator[Found]:
    """fp16 and bf16 are both switched on.

    The two exclude each other. Some trainers stop with an error, others silently take one of them.

    Example:
        training:
          fp16: true
          bf16: true

    Why:
        fp16 needs a loss scaler and overflows above 65504; bf16 needs neither. A run that was meant to be bf16 may be
        fp16.

    Fix:
        Keep one. bf16 on hardware that has it.

    Silent:
        When one of them is false.
    """
    fp16, bf16 = half_flags(source)
    for first in fp16:
        for second in bf16:
            if _section(first) == _section(second):
                yield Found(
                    "high",
                    second.line,
                    True,
                    f"{first.name} (line {first.line}) and {second.name} are both on",
                    "keep one: bf16 where the hardware has it, else fp16",
                    second.file,
                )
                return


@configuration_check("NT803", "fp16_without_loss_scaling")
def fp16_without_loss_scaling(source: Source, repository: Repository) -> Iterator[Found]:
    """float16 is used without a loss scaler.

    Gradients below 6e-8 become zero in float16, and most gradients of a trained network are small. A loss scaler
    (GradScaler) multiplies the loss so that they survive. Lightning's `16-true` and a float16 autocast whose backward
    uses no scaler do without.

    Example:
        with torch.autocast("cuda"):            # float16 is the default on CUDA
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()

    Why:
        float16 holds values from 6e-8 to 65504. What is smaller is zero, what is larger is Inf.

    Fix:
        Use bfloat16, which has the range of float32, or a GradScaler around backward and step:

            - loss.backward()
            - optimizer.step()
            + scaler.scale(loss).backward()
            + scaler.step(optimizer)
            + scaler.update()

    Silent:
        With `16-mixed`, bfloat16, `no_grad`, or where nothing is differentiated.
    """
    for each in source.all("precision"):
        found = precision(each.value)
        if found is not None and found.dtype == "float16" and found.weights:
            yield Found(
                "high",
                each.line,
                each.value,
                f"{each.name} is {each.value}: weights, gradients and optimizer state in float16, without loss scaling",
                "use bf16-mixed, or 16-mixed, which scales the loss",
                each.file,
            )


@configuration_check("NT804", "amp_without_dtype")
def amp_without_dtype(source: Source, repository: Repository) -> Iterator[Found]:
    """Mixed precision is switched on, but nothing says in which dtype.

    `amp: true` leaves the dtype to a default. On CUDA `torch.autocast` without a dtype means float16, whatever the
    launcher says. If the code has no loss scaler either, small gradients are lost and large values overflow.

    Example:
        trainer:
          lr: 1e-5
          amp: true
          fp16: false

    Why:
        The author of the file thinks of bf16 because the launcher says so; the code opens a float16 region.

    Fix:
        Name the dtype in the file and in the code: `torch.autocast("cuda", dtype=torch.bfloat16)`, or use
        `accelerator.autocast()`, which follows the launcher.

    Silent:
        When a dtype or a scaler is named, and in code for inference.
    """
    asked = computation(source)
    if source.role != "trainer" or asked is None or asked.dtype != "amp" or asked.setting.value == "amp":
        return
    if any(switch(each.value) is not False and each.known for each in source.all("scaler")) or repository.scales:
        return
    if repository.names_dtype:
        return
    if any(
        each.key in ("precision", "weight_dtype", "loss_scale")
        and each.value is not True
        and not says_no(each.value)
        and each.value is not None
        for each in source.settings
    ):
        return
    if not any(source.first(key) for key in ("lr", "optimizer", "epochs", "total_steps", "batch_size", "min_lr")):
        return
    if any(not each.known for each in (*source.all("fp16"), *source.all("bf16"))):
        return
    theirs = repository.agreed(repository.partners(source, "launcher"), asked_dtype)
    named = "amp" in asked.setting.names[-1] or "amp" in asked.setting.parent
    bf16 = theirs is not None and theirs[0] == "bfloat16"
    beside = (
        f", while the launcher says bf16 ({theirs[1].file}:{theirs[1].line})" if bf16 and theirs is not None else ""
    )
    yield Found(
        "high" if bf16 else "medium" if named else "low",
        asked.setting.line,
        True,
        f"{asked.setting.name} is on and no dtype is named: torch.autocast on CUDA takes float16, "
        f"without loss scaling unless the code has a GradScaler{beside}",
        "name the dtype: bf16: true, and dtype=torch.bfloat16 in torch.autocast",
        asked.setting.file,
    )


@configuration_check("NT805", "scaler_with_bf16")
def scaler_with_bf16(source: Source, repository: Repository) -> Iterator[Found]:
    """A loss scaler is used exactly when training is in bfloat16.

    bfloat16 has the range of float32, so nothing underflows and no scaler is needed. Copies of a well-known training
    script enable it for the wrong dtype: bf16 gets a scaler and fp16, which needs it, gets none.

    Example:
        scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "bfloat16"))

    Why:
        Multiplying by 65536 costs nothing in bf16 but can overflow a large loss, and steps are then skipped.

    Fix:
        Remove the scaler, or enable it for float16 only:

            - scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "bfloat16"))
            + scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))

    Silent:
        When the scaler is enabled for float16.
    """
    asked = computation(source)
    if asked is None or asked.dtype != "bfloat16" or source.role != "trainer":
        return
    for each in source.all("scaler"):
        if switch(each.value) and each.value is not None:
            yield Found(
                "medium",
                each.line,
                each.value,
                f"{each.name} is on and training is in bf16 ({asked.setting.name}, line {asked.setting.line})",
                "switch the scaler off; bf16 needs none",
                each.file,
            )


@configuration_check("NT806", "explicit_no_overrides_launcher")
def explicit_no_overrides_launcher(source: Source, repository: Repository) -> Iterator[Found]:
    """The code says mixed_precision="no" although the launcher asks for half precision.

    An argument of `Accelerator` beats `accelerate config`. A run that was configured for bf16 then trains in float32,
    or, if the code opens its own autocast region, in float16 without loss scaling.

    Example:
        accelerator = Accelerator(mixed_precision="fp16" if args.fp16 else "no")

    Why:
        `accelerate launch` passes its choice through the environment, which is read only where the argument is None.

    Fix:
        Drop the argument and let the launcher decide:

            - accelerator = Accelerator(mixed_precision="no")
            + accelerator = Accelerator()

    Silent:
        When the launcher says `no` too, or nothing.
    """
    if source.role != "code":
        return
    setting = next((each for each in source.settings if each.names == ("mixed_precision",)), None)
    if setting is None or not setting.known or not says_no(setting.value):
        return
    yield from overridden_by_no(source, setting, repository)


def overridden_by_no(source: Source, setting: Setting, repository: Repository) -> Iterator[Found]:
    """The finding of NT806 at a setting, if the launcher asks for half precision."""
    theirs = repository.agreed(repository.partners(source, "launcher"), asked_dtype)
    if theirs is not None and theirs[0] in ("float16", "bfloat16"):
        yield Found(
            "high",
            setting.line,
            "no",
            f'mixed_precision="no" overrides the launcher, which asks for {_SHORT[theirs[0]]} '
            f"({theirs[1].file}:{theirs[1].line})",
            "drop the argument; the launcher decides then",
            setting.file,
        )


@configuration_check("NT807", "static_loss_scale")
def static_loss_scale(source: Source, repository: Repository) -> Iterator[Found]:
    """fp16 runs with a loss scale that never changes.

    A fixed scale overflows when the loss grows, and every step is then skipped or poisoned; or it is too small and
    gradients vanish. 0 means dynamic: the scale is halved after an overflow and raised again later.

    Example:
        "fp16": {"enabled": true, "loss_scale": 128}

    Why:
        Gradients shrink by orders of magnitude during training. No one number fits the beginning and the end.

    Fix:
        Set `loss_scale` to 0 (DeepSpeed, Megatron), or to "dynamic" (mmcv, apex).

    Silent:
        With `loss_scale: 0`, with fp16 off, and for a weight of the loss that happens to have this name.
    """
    for each in source.all("loss_scale"):
        scale = number(each.value)
        if scale is None or scale <= 0 or not _fp16_beside(source, each) or _is_weight(source, each):
            continue
        yield Found(
            "medium",
            each.line,
            each.value,
            f"{each.name} is {each.value}: the loss scale of fp16 is fixed and cannot follow the gradients",
            "set it to 0 (or dynamic), so that it adapts",
            each.file,
        )


def _fp16_beside(source: Source, scale: Setting) -> bool:
    if scale.parent and scale.parent[-1] in ("fp16", "amp", "mixed_precision"):
        switches = [each for each in source.all("fp16") if each.names[: len(scale.parent)] == scale.parent]
        if switches:
            return all(switch(each.value) is True for each in switches)
    asked: Asked | None = computation(source)
    return asked is not None and asked.dtype == "float16"


def _is_weight(source: Source, scale: Setting) -> bool:
    beside = [each.names[-1] for each in source.settings if each.parent == scale.parent and each is not scale]
    return any(name.endswith(("_weight", "_loss", "_coef", "_lambda")) and "loss" in name for name in beside)


def _section(setting: Setting) -> tuple[str, ...]:
    """The section of a switch; that of `fp16.enabled` is the one that contains `fp16`."""
    return setting.names[:-2] if setting.names[-1] in ("enabled", "enable") else setting.parent


def _overridden(source: Source, setting: Setting, repository: Repository) -> bool:
    """Whether a launch line gives another value for an argparse default."""
    for line in repository.sources:
        if line.kind == "shell" and line.script and source.file.endswith(line.script.rsplit("/", 1)[-1]):
            return True
    return False
