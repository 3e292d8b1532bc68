"""What the logs of other trainers say of themselves: steps that were left out, and how the run ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from nantrap.health.findings import HealthFinding, share
from nantrap.health.window import LogWindow
from nantrap.incident.wording import counted
from nantrap.problems import Severity
from nantrap.record import Column, LogNote
from nantrap.record.columns import Floats
from nantrap.record.series import is_evaluation, losses_of, normal_form

_TRACEBACK = re.compile(r"(?:^|[\]:|] ?)Traceback \(most recent call last\)")
_IGNORED = re.compile(r"Exception ignored (?:in|on)\b")
_KILLED = re.compile(
    r"^(?:Killed|Aborted|Segmentation fault|Terminated)\b|oom[-_ ]?kill|out of memory: kill|CANCELLED|\bdied with\b|"
    r"exited with exit code [1-9-]|^Fatal Python error|core dumped"
)
_GAVE_UP = re.compile(
    r"(?=.*\b(?:nan|inf(?:inite|inity)?|non-?finite|not finite)\b)"
    r".*\b(?:stop|terminat|abort|exit|quit|giv)(?:p?ing|e|ed)?\b",
    re.I,
)
_NOT_FINITE = re.compile(r"(?<![\w/])(?:nan|inf)(?:\.0)?(?![\w/])|\b(?:non-?|not |in |isn't )finite\b", re.I)
_SETTING = re.compile(r"[\w\]'\"]\s*[=:]\s*['\"]?[-+]?(?:inf|nan)\b|nan['\"]", re.I)
_LAST_LINES = 20
_ERROR = re.compile(r"(?:^|[\]:|] ?)((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit|Warning)(?::.*)?)$")
_JUDGED = ("loss", "grad_norm", "lr", "scale", "epoch", "skipped", "nan_steps")
_SEARCH = 25
"""A GradScaler that begins too high leaves out about this many steps until it has found its scale."""


def left_out_steps(window: LogWindow) -> Iterator[HealthFinding]:
    """How many steps did the trainer itself leave out, by its own counters?"""
    for name, words in (("skipped", "skipped"), ("nan_steps", "NaN")):
        column = window.column(name)
        if column is not None and len(column) and window.run.kind != "nantrap":
            yield _left_out(column, words)


def _left_out(column: Column, words: str) -> HealthFinding:
    """How many steps a counter of the log says were left out, in all and in its last third."""
    new, steps = _per_row(column), np.diff(column.step)
    usual = float(np.median(steps)) if len(steps) else 1.0
    steps = np.maximum(np.append(usual, steps), np.maximum(new, 1))  # for each row, those since the row before
    amount, total = int(new.sum()), int(steps.sum())
    tail = slice(-max(3, len(new) // 3), None)
    late = float(new[tail].sum() / steps[tail].sum())
    data = {"column": column.name, "left_out": amount, "steps": total, "share_at_end": round(late, 4)}
    said = f"the log counts {share(amount, total)} steps as {words}"
    if late > 0.1 or amount > 0.5 * total:
        told = f"{said}; in the last third of the log {100 * late:.3g}%"
        return HealthFinding("skipped", "error", told, data=data, fix="these steps did not change the weights")
    return HealthFinding("skipped", "warning" if amount > max(_SEARCH, 0.01 * total) else "ok", said, data=data)


def _per_row(column: Column) -> Floats:
    """How many steps each row adds. Megatron counts since its last line, most others since the start."""
    values = np.nan_to_num(column.value)
    since_last_line = normal_form(column.name).startswith("number_of") or (np.diff(values) < 0).any()
    return values if since_last_line else np.diff(values, prepend=0.0)


def lost_values(window: LogWindow) -> Iterator[HealthFinding]:
    """Are values that have no check of their own not finite from some step to the end?

    In a log without a loss they are all there is to judge, so there it is an error. So it is where nothing but lines
    about NaN follow the last values: a trainer that leaves out each step may print no other line.
    """
    if window.run.kind == "nantrap":
        return
    named = {column.name for name in _JUDGED if (column := window.column(name)) is not None}
    without_loss = window.column("loss") is None
    severity: Severity = "error" if without_loss else "warning"
    for name in window.series.names:
        column = window.column(name)
        if name in named or column is None or is_evaluation(name) or losses_of([name]):
            continue
        finite = np.flatnonzero(np.isfinite(column.value))
        tail = len(column) - (int(finite[-1]) + 1 if len(finite) else len(column))
        if tail >= 3:
            words = f"{name} is not finite since step {column.step[-tail]:,} ({counted(tail, 'value')})"
            yield HealthFinding("lost_values", severity, words, data={"column": name, "nonfinite": tail})
    last = [n for n in window.run.notes if n.line > window.run.lines - _LAST_LINES and _NOT_FINITE.search(n.text)]
    if without_loss or all(note.row >= len(window.series) for note in last):
        lines = min(_LAST_LINES, window.run.lines)
        if len(last) >= min(5, lines) > 0:
            words = f"{len(last)} of the last {counted(lines, 'line')} hold NaN or Inf: {last[-1].text[:120]}"
            yield HealthFinding("lost_values", "error", words, data={"lines": len(last)})


def end_of_run(window: LogWindow) -> Iterator[HealthFinding]:
    """Do the last lines of a text log say that an error ended the run?"""
    notes, rows = window.run.notes, len(window.series)
    last = [note for note in notes if note.row >= rows - 2]  # the error may be followed by the values that it prints
    said = _fatal(last)
    if said:
        interrupted = said.startswith("KeyboardInterrupt")
        words = "the run was interrupted (KeyboardInterrupt)" if interrupted else f"the log ends with {said[:160]}"
        yield HealthFinding("ended", "warning" if interrupted else "error", words, data={"error": said})
    told = {note.line for note in last} if said else set()
    within = np.flatnonzero(window.rows)
    others = [n for n in notes if len(within) and within[0] <= n.row <= within[-1] + 1 and n.line not in told]
    others = [n for n in others if n.row or not _SETTING.search(n.text)]  # before the first step: a setting
    if others:
        words = f"{counted(len(others), 'line')} about NaN or an error; line {others[0].line:,}: {others[0].text[:120]}"
        yield HealthFinding("log_lines", "warning", words, data={"lines": len(others), "first": others[0].line})


def _fatal(notes: list[LogNote]) -> str:
    """The error of the last traceback among these lines, or what killed the process; empty if nothing did."""
    found, begun, ignored = "", False, False
    for note in notes:
        if _IGNORED.search(note.text):
            ignored = True
        elif _TRACEBACK.search(note.text):
            begun, ignored = not ignored, False
            found = "a traceback" if begun else found
        elif begun and (error := _ERROR.search(note.text)):
            found, begun = error[1], False
        elif _KILLED.search(note.text) or _GAVE_UP.search(note.text):
            found = note.text
    return found
