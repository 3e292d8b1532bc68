"""Plain text logs by pattern: progress bars, `step 100 | loss 2.3 | lr 1e-4`, `key=value`, printed dictionaries.

A line counts as a record when it holds a measured value (a loss, an accuracy, a learning rate next to a step, ...).
Where a line says so, the epoch and the step are taken from it; steps that are counted anew in every epoch become one
count over the whole log. Lines that speak of NaN or of an error are kept as notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NUMBER = (
    r"[-+]?(?:1\.#(?:QNAN|SNAN|IND|INF)\w*"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?"
    r"|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN][aA][nN](?:\(ind\))?(?![\w/])|[iI][nN][fF](?:inity|INITY)?(?![\w/]))"
)
_AFTER = r"(?![\w.]*[:/]\d|\.\d|-\d)"
"""What follows a value is no second part of a time, a fraction, a version or a date."""
_WORD = r"[A-Za-z_][\w./@-]*"
_PAIR = re.compile(
    rf"""['"]?(?P<key>{_WORD}(?:\ {_WORD}){{0,3}}|\[?{_WORD})(?:\ ?\((?P<unit>[A-Za-z/]+)\))?['"]?\s*[=:]\s*[\[('"]*"""
    rf"(?P<value>{_NUMBER}){_AFTER}",
)
_METRIC = (
    r"(?:loss|lr|learning[_ ]rate|grad(?:ient)?[_ ]?norm|g?norm|acc(?:uracy)?(?:@\d+)?|ppl|perplexity|reward|error|err|"
    r"psnr|ssim|fid|bleu|rouge|wer|cer|mse|mae|rmse|nll|kl|elbo|f1|auc|iou|miou|map|dice|score|bpb|bpd|mfu|"
    r"loss[_ ]scale)"
)
_SPACED = re.compile(
    rf"(?P<key>(?:(?:train(?:ing)?|val(?:id(?:ation)?)?|eval|test|dev|total|avg|mean|lm|[dg])[ _/-])?"
    rf"(?:\w*_)?{_METRIC}(?:_\w+)?)\s+(?P<value>{_NUMBER}){_AFTER}",
    re.I,
)
_AT = re.compile(
    rf"(?P<key>(?:{_WORD}[ _])?{_METRIC}) (?:at|after|for) (?:step|iter(?:ation)?|epoch)s? [\d,]+"
    rf"\s*[:=,]\s*(?P<value>{_NUMBER}){_AFTER}",
    re.I,
)
_IS_METRIC = re.compile(rf"(?:^|[^a-z]){_METRIC}(?![a-z])|loss", re.I)
_EPOCH = re.compile(
    r"\bep(?:och)?\b['\"]?\s*[:=#]?\s*['\"\[(]?\s*(\d{1,9}(?:\.\d+)?)(?![\d.]*%|\d)\s*(?:(?:/|of)\s*(\d{1,9}))?", re.I
)
_STEP = re.compile(
    r"\b(?:global[_ ]?step|train[_ ]step|steps?|iter(?:ation)?s?|it|batch|updates?|num_updates)\b"
    r"['\"]?\s*[:=#]?\s*[\[(]?\s*(\d[\d,]{0,17})(?![\w.])\s*(?:/\s*(\d[\d,]{0,17}))?",
    re.I,
)
_BAR = re.compile(r"(?<!\d)(\d{1,15}(?:\.\d{1,9})?)([kM]?)/(\d{1,15}(?:\.\d{1,9})?)([kM]?)\s*\[")
_FRACTION = re.compile(r"(?<![\d/])(\d{1,15})\s*/\s*(\d{1,15})(?![\d/])")
_COUNTER = re.compile(r"steps?|iter(?:ation)?s?|epochs?|ep|batch|it|eta|time|date|info|warning|debug|update", re.I)
_QUALIFIER = re.compile(
    r"train(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?|test|dev|total|avg|average|mean|lm|d|g|gen|disc|smoothed|"
    r"grad(?:ient)?|learning|loss",
    re.I,
)
_TROUBLE = re.compile(
    r"\b(?:nan|infs?|non-?finite|overflow(?:ed)?|diverged|error|traceback|exception|out of memory|killed|aborted)\b"
    r"|Error\b",
    re.I,
)
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass(frozen=True, slots=True)
class Note:
    """A line of a text log that speaks of trouble: NaN, overflow, an error."""

    step: int
    row: int
    line: int
    text: str


class TextLog:
    """Turns the lines of a text log into records. Holds the epoch and the step reached, and how steps are counted."""

    def __init__(self, *, most_notes: int = 1000) -> None:
        self.notes: list[Note] = []
        self.total_steps: int | None = None
        self.total_epochs: int | None = None
        self._most_notes = most_notes
        self._line = 0
        self._rows = 0
        self._epoch: float | None = None
        self._first_epoch: float | None = None
        self._offset = 0  # steps of the epochs before, where each epoch counts from its start
        self._count = -1  # the step as the log counts it
        self._epoch_of_count: float | None = None
        self._step: int | None = None
        self._largest = 0  # the most steps that a progress bar has announced

    def records(self, lines: list[str]) -> list[dict[str, object]]:
        """The records among these lines, in order."""
        found = []
        for raw in lines:
            self._line += 1
            line = _ESCAPES.sub("", raw) if "\x1b" in raw or not raw.isprintable() else raw
            record = self._record(line[:4000])
            if record is not None:
                found.append(record)
                self._rows += 1
        return found

    def _record(self, line: str) -> dict[str, object] | None:
        values = _values(line)
        self._follow(line)
        metrics = [key for key in values if _IS_METRIC.search(key)]
        placed = _STEP.search(line) is not None or _BAR.search(line) is not None or _EPOCH.search(line) is not None
        if not metrics or not (placed or any("loss" in key.lower() or "acc" in key.lower() for key in metrics)):
            if _TROUBLE.search(line) and len(self.notes) < self._most_notes:
                self.notes.append(Note(self._step or 0, self._rows, self._line, line.strip()[:500]))
            return None
        record: dict[str, object] = dict(values)
        if self._step is not None:
            record["step"] = self._step
        if self._epoch is not None and "epoch" not in record:
            record["epoch"] = self._epoch
        return record

    def _follow(self, line: str) -> None:
        """Keep count of epoch and step."""
        rest = line
        if match := _EPOCH.search(line):
            epoch = float(match[1])
            if self._first_epoch is None:
                self._first_epoch = epoch
            self._epoch = epoch
            if match[2]:
                self.total_epochs = int(match[2])
            rest = line[match.end() :]
        count, total, within = _count(rest, has_epoch=match is not None)
        if count is None:
            return
        if total and match is None and total < self._largest:
            return  # the bar of an evaluation, or of the epochs, beside that of the steps
        self._largest = max(self._largest, total or 0)
        epoch_ended = (
            self._epoch is not None and self._epoch_of_count is not None and self._epoch > self._epoch_of_count
        )
        if epoch_ended and count <= self._count:
            within = True
            if not total:
                self._offset = (self._step or 0) + 1
        if total:
            whole = self._epoch is not None and self._epoch == int(self._epoch)
            if whole and (within or epoch_ended or self._epoch_of_count is None):
                assert self._epoch is not None
                self._offset = total * max(0, int(self._epoch) - (0 if self._first_epoch == 0 else 1)) if within else 0
            epochs = self.total_epochs if within and self._epoch is not None else 1
            self.total_steps = total * epochs if epochs else None
        self._count, self._epoch_of_count = count, self._epoch
        self._step = count + self._offset


def _values(line: str) -> dict[str, object]:
    """The named numbers of a line."""
    values: dict[str, object] = {}
    for pattern in (_PAIR, _SPACED, _AT):
        for match in pattern.finditer(line):
            key = match["key"].strip(" .-_/@[")
            if line[match.end() : match.end() + 1] == "]" and f"{key}:{match['value']}" in match[0]:
                continue  # [module:41] is a place in a file
            words = key.split()
            # "train_inner epoch 1 loss: 2.3" is about the last words: those that make a name
            while len(words) > 1 and not _IS_METRIC.search(words[0]) and _IS_METRIC.search(" ".join(words[1:])):
                if _QUALIFIER.fullmatch(words[0]):
                    break
                words = words[1:]
            key = "_".join(words)
            counter = 0 < len(words) <= 2 and _COUNTER.fullmatch(words[-1])
            if key and not counter and key not in values:
                values[key] = match["value"].replace(",", "")
    return values


def _count(line: str, *, has_epoch: bool) -> tuple[int | None, int | None, bool]:
    """The step a line names, of how many, and whether it is counted within the epoch."""
    if match := _BAR.search(line):
        done, whole = (int(float(match[i]) * _UNITS[match[i + 1]]) for i in (1, 3))
        return done, whole, has_epoch
    if match := _STEP.search(line):
        total = int(match[2].replace(",", "")) if match[2] else None
        within = match[0].lstrip().lower().startswith("batch")
        return int(match[1].replace(",", "")), total, within
    if has_epoch and (match := _FRACTION.search(line)):
        return int(match[1]), int(match[2]), True
    return None, None, False
