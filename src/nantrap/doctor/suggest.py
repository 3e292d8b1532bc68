"""Safer settings, or bolder ones after a stable run, as a patch of the user's own files.

Which values to change, and exact edits of them: everything else in a file, comments and order included, stays."""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nantrap.doctor.checks.half_weights import SMALL_RATE
from nantrap.doctor.checks.probabilities import lowest_temperature
from nantrap.doctor.configuration.precision import weights
from nantrap.doctor.configuration.setting import Setting, SettingSource, Span, number, role_of, whole
from nantrap.doctor.report import DoctorReport, places_of
from nantrap.doctor.repository import Repository
from nantrap.errors import UsageError
from nantrap.record.durable import put_in_place, written_beside

_RATE: Final = {"conservative": 0.5, "very-conservative": 0.1, "scale-up": 1.5}
_CLIP: Final = {"conservative": 1.0, "very-conservative": 0.5}
_BATCH: Final = {"conservative": 0.5, "very-conservative": 0.25, "scale-up": 1.5}
_WARMUP: Final = {"conservative": 2.0, "very-conservative": 4.0}
_STREAMS: Final = {"very-conservative": 0.5, "scale-up": 2.0}
_BETA: Final = {"conservative": 0.5, "very-conservative": 0.4}
_LEAST_TEMPERATURE: Final = {
    "conservative": {"temperature": 0.04, "student_temperature": 0.05, "teacher_temperature": 0.04},
    "very-conservative": {"temperature": 0.05, "student_temperature": 0.1, "teacher_temperature": 0.05},
}


def edits_for(report: DoctorReport, repository: Repository, *, level: str | None) -> list[Edit]:
    """The edits of a level; without a level, only those that fix findings."""
    codes: dict[tuple[str, int], set[str]] = {}
    for finding in report.findings:
        for place in places_of(finding):
            codes.setdefault((place.file, place.line), set()).add(finding.code)
    edits: dict[tuple[str, int], Edit] = {}
    for source in repository.sources:
        for setting in source.settings:
            if setting.span is None or setting.key is None:
                continue
            change = (
                _mended(source, setting, codes.get((setting.file, setting.line), set()))
                if level != "scale-up"
                else None
            )
            if change is None and level is not None and source.role in ("trainer", "deepspeed"):
                change = _step(source, setting, level)
            if change is None:
                continue
            new, why = change
            old = number(setting.value)
            if isinstance(new, float) and old is not None and abs(new - old) <= 1e-12 * abs(old):
                continue
            text = _written(new, setting)
            edits.setdefault((setting.file, setting.span.start), Edit(setting.file, setting.span, text, why))
    return sorted(edits.values(), key=lambda each: (each.file, each.span.start))


def _step(source: SettingSource, setting: Setting, level: str) -> tuple[Any, str] | None:
    """One level of the ladder for one setting."""
    value = number(setting.value)
    if setting.key in ("lr", "min_lr") and value is not None and 0 < value < 1:
        heavy = weights(source)
        if heavy is not None and heavy.dtype == "bfloat16" and level != "scale-up":
            new = max(value * _RATE[level], min(value, SMALL_RATE))
            return (
                new,
                "the weights are bfloat16: a lower learning rate would freeze them, so it stays at 1e-4 or above",
            )
        way = "shorter" if _RATE[level] < 1 else "longer"
        return value * _RATE[level], f"learning rate × {_RATE[level]:g}: every step is {way}"
    if setting.key == "clip" and level in _CLIP and setting.known:
        if value is None and setting.value is not None and setting.value is not False:
            return None
        if value is None or value <= 0 or value > _CLIP[level]:
            return _CLIP[level], f"clip gradients at {_CLIP[level]:g}: one batch with large gradients counts no more"
    if setting.key in ("batch_size", "micro_batch", "global_batch", "accumulation"):
        return _batch(source, setting, level)
    if setting.key == "warmup_steps" and level in _WARMUP and value is not None and value >= 1:
        total = number(source.value("total_steps"))
        new = value * _WARMUP[level]
        if total is None or total < 1 or new <= 0.1 * total:
            return int(new), f"warm-up × {_WARMUP[level]:g}: Adam's averages hold more steps before the rate is high"
    if setting.key == "fp16" and level == "very-conservative" and setting.value is True:
        return False, "fp16 off: full precision shows whether half precision is the reason"
    if setting.key == "streams" and level in _STREAMS:
        streams = whole(setting.value)
        if streams is not None and streams >= 1:
            return max(1, int(streams * _STREAMS[level])), f"streams × {_STREAMS[level]:g}"
    least = _LEAST_TEMPERATURE.get(level, {}).get(role_of(setting))
    if least is not None and value is not None and 0 < value < least:
        return least, f"{setting.name} at least {least:g}: logits are multiplied by at most {1 / least:g}"
    distils = any(role_of(each) != "temperature" for each in source.all("temperature"))
    if setting.key == "beta" and level in _BETA and distils and value is not None and _BETA[level] < value < 1:
        return _BETA[level], f"beta {_BETA[level]:g}: the gradient of the PMI loss is proportional to it"
    return None


def _batch(source: SettingSource, setting: Setting, level: str) -> tuple[Any, str] | None:
    """A smaller or larger batch. With accumulation the samples of one update stay the same."""
    size = whole(setting.value)
    factor = _BATCH[level]
    micro = source.first("micro_batch") or source.first("batch_size")
    steps = whole(source.value("accumulation"))
    kept = steps is not None and steps >= 1 and micro is not None and (whole(micro.value) or 0) > 1 and factor < 1
    if size is None or size < 1:
        return None
    if setting.key == "accumulation":
        more = round(1 / factor)
        return (size * more, f"accumulation × {more}: one update still sees as many samples") if kept else None
    if size == 1 or (kept and setting.key == "global_batch"):
        return None
    why = "a skipped step loses fewer samples" if factor < 1 else "the gradient is less noisy"
    return max(1, int(size * factor)), f"batch size × {factor:g}: {why}"


def _mended(source: SettingSource, setting: Setting, codes: set[str]) -> tuple[Any, str] | None:
    """The value that fixes a finding at this setting."""
    for code, new, why in _mends(source, setting):
        if code in codes:
            return new, f"{code}: {why}"
    return None


def _mends(source: SettingSource, setting: Setting) -> Iterator[tuple[str, Any, str]]:
    """The values that fix a finding about a setting, with the finding's code and why."""
    key = setting.key
    if key == "lr":
        yield "NT810", 1e-4, "1e-4 is a usual learning rate for Adam"
    elif key == "min_lr":
        rate = source.near(setting, "lr")
        peak = number(rate.value) if rate is not None else None
        if peak is not None:
            yield "NT809", peak / 10, "a tenth of the learning rate"
    elif key == "clip":
        yield "NT811", 1.0, "clip at 1.0"
        yield "NT812", 1.0, "clip at 1.0"
    elif key == "loss_scale":
        yield "NT807", 0, "0 means dynamic"
    elif key in ("warmup_steps", "total_steps"):
        total = number(source.value("total_steps"))
        if total is not None and key == "warmup_steps":
            yield "NT814", max(1, int(total * 0.03)), "3 % of the steps"
            yield "NT813", max(1, int(total * 0.01)), "1 % of the steps"
    elif key == "temperature":
        least = max(lowest_temperature(setting.names), 0.04)
        yield "NT818", least, f"{setting.name} at least {least:g}"
    elif key == "nan_filter":
        yield "NT821", False, "show NaN in the log"
    elif key == "save_steps":
        yield "NT822", 1000, "save every 1,000 steps"
    elif key == "keep":
        yield "NT823", 3, "keep 3 checkpoints"
    elif key == "precision":
        yield "NT803", "bf16-mixed", "mixed precision instead of half-precision weights"


def _written(new: Any, setting: Setting) -> str:
    """The new value in the style of the old one."""
    python = setting.file.endswith(".py")
    if isinstance(new, bool):
        return str(new) if python else str(new).lower()
    if isinstance(new, str):
        return f'"{new}"'
    if isinstance(new, int):
        return str(new)
    return written_number(float(new), str(setting.value), exponent=_in_exponent(setting))


def _in_exponent(setting: Setting) -> bool:
    value = number(setting.value)
    return value is not None and 0 < abs(value) < 1e-3


def written_number(value: float, like: str, *, exponent: bool) -> str:
    """`5e-5` where people write so, `0.5` and `1.0` elsewhere."""
    if exponent or 0 < abs(value) < 1e-3:
        mantissa, _, power = f"{value:.4e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    text = f"{value:.6f}".rstrip("0")
    text = text + "0" if text.endswith(".") else text
    return text if "." in text or not re.fullmatch(r"-?\d+", like) else text.removesuffix(".0")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of one value. `why` is shown above the patch."""

    file: str
    span: Span
    new: str
    why: str


def patch_of(edits: Sequence[Edit]) -> str:
    """The edits as one unified diff."""
    parts = []
    for file in sorted({edit.file for edit in edits}):
        before, _, _ = _read(file)
        after = _edited(before, [edit for edit in edits if edit.file == file])
        lines = difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{file.lstrip('/')}",
            f"b/{file.lstrip('/')}",
        )
        for line in lines:
            parts.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(parts)


def apply_edits(edits: Sequence[Edit]) -> list[tuple[str, str]]:
    """Write the edits. Returns (file, backup) for each file; a backup never replaces an older one.

    Raises:
        UsageError: A file cannot be written; nothing of it is changed then.
    """
    done = []
    for file in sorted({edit.file for edit in edits}):
        before, mark, newline = _read(file)
        after = _edited(before, [edit for edit in edits if edit.file == file])
        try:
            backup = _backup(file)
            _replace(file, mark + after.replace("\n", newline).encode())
        except OSError as error:
            raise UsageError(f"{file}: cannot be changed: {error.strerror or error}") from error
        done.append((file, backup))
    return done


def _read(file: str) -> tuple[str, bytes, str]:
    """The text as the readers saw it, the byte order mark, and the line ending."""
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    try:
        text = data[len(mark) :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8, so it cannot be edited safely") from error
    newline = "\r\n" if "\r\n" in text else "\n"
    return text.replace("\r\n", "\n"), mark, newline


def _edited(text: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(edits, key=lambda each: each.span.start, reverse=True):
        text = text[: edit.span.start] + edit.new + text[edit.span.end :]
    return text


def _backup(file: str) -> str:
    """Copy a file in its folder under a free name."""
    with open(file, "rb") as stream:
        data = stream.read()
    number = 0
    while True:
        name = f"{file}.bak" if number == 0 else f"{file}.bak{number}"
        try:
            with open(name, "xb") as target:
                target.write(data)
            return name
        except FileExistsError:
            number += 1


def _replace(file: str, data: bytes) -> None:
    """Write a new file and replace the old one atomically, with the old one's permissions."""
    target = Path(os.path.realpath(file))
    with written_beside(target) as stream:
        shutil.copymode(target, stream.name)
        stream.write(data)
    put_in_place(target)
