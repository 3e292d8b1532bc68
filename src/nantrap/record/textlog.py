"""Plain text logs by pattern: progress bars, `step 100 | loss 2.3 | lr 1e-4`, `key=value`, printed dictionaries.

A line counts as a record when it holds a measured value (a loss, an accuracy, a learning rate next to a step, ...). The
epoch and the step are taken from the lines that have them; steps that are counted from 0 in every epoch become one
count over the whole log. Values in the lines below a line with a step belong to that step. A row below a line of names
(`Epoch  box_loss  cls_loss`), and a row of a box (`| loss | 2.3 |`), are read as `name: value`. Lines that mention NaN
or an error are kept as notes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# ---- One line of a text log: which of its numbers mean what.
#
# Lines of a log repeat: they differ in their numbers. What the words around the numbers mean is found out once for each
# shape of a line (its text without the numbers) and kept, since that takes many times longer than splitting the line.

_NUMBER = (
    r"[-+]?(?:1\.#(?:QNAN|SNAN|IND|INF)\w*"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?"
    r"|\.\d+(?:[eE][-+]?\d+)?"
    r"|[nN][aA][nN](?:\(ind\)|\.0)?(?![\w/])|[iI][nN][fF](?:inity|INITY)?(?![\w/]))"
)
_AFTER = r"(?![\w.]*[:/]\d|\.\d|-\d)"
"""What follows a value is no second part of a time, a fraction, a version or a date."""
_WORD = r"[A-Za-z_][\w./@-]*(?![\w./@-])"
_WRAP = r"(?:(?:(?:np|numpy|torch)\.)?(?:tensor|float\d+|[aA]rray)\(|\{\s*['\"]?\d\w*['\"]?\s*:\s*)?"
"""What may stand before a printed value: `tensor(`, `np.float64(`, or the first entry of a dictionary of groups."""
_PAIR = re.compile(
    rf"""(?<![\w./@-])(?P<key>{_WORD}(?:\ {_WORD}){{0,3}})(?:\ ?\([A-Za-z/]+\))?['"]?\s*[=:]\s*{_WRAP}[\[('"]*"""
    rf"(?P<value>{_NUMBER}){_AFTER}",
)
_METRIC = (
    r"(?:loss|lr|learning[_ ]rate|grad(?:ient)?[_ ]?norm|g?norm|acc(?:uracy)?(?:@\d+)?|ppl|perplexity|reward|error|err|"
    r"psnr|ssim|fid|bleu|rouge|wer|cer|mse|mae|rmse|nll|kl|elbo|f1|auc|iou|miou|map|dice|score|bpb|bpd|mfu|"
    r"loss[_ ]scale)"
)
_SPACED = re.compile(
    rf"(?<![\w/])(?P<key>(?:(?:train(?:ing)?|val(?:id(?:ation)?)?|eval|test|dev|total|avg|mean|lm|[dg])[ _/-])?"
    rf"(?:\w*_)?{_METRIC}(?:_\w+)?)\]?\s+(?P<value>{_NUMBER}){_AFTER}",
    re.I,
)
_AT = re.compile(
    rf"(?<!\w)(?P<key>(?:{_WORD}[ _])?{_METRIC}) (?:at|after|for) (?:step|iter(?:ation)?|epoch)s? [\d,]+"
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
_TOKEN = re.compile(rf"((?<![A-Za-z_])(?:{_NUMBER})|\d+)")
_BLOCKS = re.compile(r"[█▏▎▍▌▋▊▉]+ *")
_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
_MOST_SHAPES = 5000
_LONGEST = 4000
_MOST_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """What the numbers of a line mean, each by its place among them; `None` for what the line does not name.

    Attributes:
        values: names and places of measured values.
        is_record: whether these are a record by themselves, or only below a line that names the step.
        epoch: the epoch, and `epochs` of how many.
        count: the step or iteration, and `total` of how many, each with what it is to be multiplied by.
        within: whether the count starts again in every epoch.
    """

    values: tuple[tuple[str, int], ...] = ()
    is_record: bool = False
    epoch: int | None = None
    epochs: int | None = None
    count: int | None = None
    total: int | None = None
    count_unit: int = 1
    total_unit: int = 1
    within: bool = False


class Shapes:
    """Finds the shape of each line. Holds those it has seen."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], Shape] = {}

    def read(self, line: str) -> tuple[Shape, list[str]]:
        """The shape of a line, and its numbers."""
        if len(line) > _LONGEST:
            line = line[:_LONGEST]
        if "|" in line:
            line = _BLOCKS.sub("█", line)  # how far a bar is drawn is no part of the shape
        pieces = _TOKEN.split(line)
        key = tuple(pieces[::2])
        shape = self._seen.get(key)
        if shape is None:
            shape = shape_of(line)
            if len(self._seen) < _MOST_SHAPES:
                self._seen[key] = shape
        return shape, pieces[1::2]


def as_number(text: str) -> float | str:
    """A number, also in the many spellings of NaN; otherwise the text itself."""
    try:
        return float(text)
    except ValueError:
        text = text.replace(",", "").replace("nan.0", "nan")
    try:
        return float(text)
    except ValueError:
        return text


def shape_of(line: str) -> Shape:
    """Find out what the numbers of a line mean."""
    places = {match.start(): index for index, match in enumerate(_TOKEN.finditer(line))}
    values = {name: places[start] for name, start in _values(line).items() if start in places}
    epoch = _EPOCH.search(line)
    rest = epoch.end() if epoch else 0
    found: dict[str, int | None] = {}
    if epoch is not None:
        found["epoch"] = places.get(epoch.start(1))
        found["epochs"] = places.get(epoch.start(2)) if epoch[2] else None
    units, within = (1, 1), False
    bar, step = _BAR.search(line, rest), _STEP.search(line, rest)
    if bar is not None:
        found |= {"count": places.get(bar.start(1)), "total": places.get(bar.start(3))}
        units, within = (_UNITS[bar[2]], _UNITS[bar[4]]), epoch is not None
    elif step is None and epoch is not None and (fraction := _FRACTION.search(line, rest)):
        found |= {"count": places.get(fraction.start(1)), "total": places.get(fraction.start(2))}
        within = True
    elif step := step or _STEP.search(line):  # `step=10/556000,epoch=0`: the epoch may come last
        found |= {"count": places.get(step.start(1)), "total": places.get(step.start(2)) if step[2] else None}
        within = step[0].lstrip().lower().startswith("batch")
    metrics = [name.lower() for name in values if _IS_METRIC.search(name)]
    placed = bar is not None or epoch is not None or found.get("count") is not None
    is_record = bool(metrics) and (placed or any("loss" in name or "acc" in name for name in metrics))
    kept = tuple(values.items()) if metrics else ()
    return Shape(kept, is_record, **found, count_unit=units[0], total_unit=units[1], within=within)


def _values(line: str) -> dict[str, int]:
    """The named numbers of a line: where each begins."""
    values: dict[str, int] = {}
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
                values[key] = match.start("value")
    return values


# ---- Tables: their cells become `name: value`.

_BOX = re.compile(rf"[\d\s.,:-]*\|\s+(?P<key>[A-Za-z_][\w/.@-]*)(?:\s+\||\s\s)\s*(?P<value>{_NUMBER})\s*\|?\s*")
_COLUMN = re.compile(r"[A-Za-z_][\w/.@()-]*")
_CELL = re.compile(rf"(?:{_NUMBER}|\d+/\d+|\d+(?::\d\d)+)[kMGT%]?", re.I)


class TableLines:
    """Rewrites the rows of tables. Holds the names of the columns that the last line of names gave."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def spelt(self, line: str) -> str:
        """The line, with a name before each number if it is a row of a table."""
        if box := _BOX.fullmatch(line):
            return f"    {box['key']}: {box['value']}"
        separator = next((mark for mark in ("\t", " | ") if mark in line), None)
        words = line.strip("| \n" if separator == " | " else None).split(separator, maxsplit=_MOST_COLUMNS)
        if separator is not None:
            words = [word.strip().replace(" ", "_") for word in words]
        if len(words) >= 3 and all(map(_COLUMN.fullmatch, words)):
            counted = any(_COUNTER.fullmatch(word) for word in words)
            self._columns = words if counted and any(map(_IS_METRIC.search, words)) else []
        elif self._columns and len(words) >= len(self._columns):
            cells = [word.rstrip(":") for word in words[: len(self._columns)]]
            if all(_CELL.fullmatch(cell) or cell == "No_Log" for cell in cells):
                named = ", ".join(f"{name}: {cell}" for name, cell in zip(self._columns, cells, strict=True))
                return f"{named} {' '.join(words[len(cells) :])}"
        return line


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_TROUBLE = re.compile(
    r"\b(?:nan|infs?|non-?finite|(?:not|in|isn't) finite|overflow(?:ed)?|diverged|error|traceback|exception|"
    r"out of memory|killed|aborted|KeyboardInterrupt)\b"
    r"|Error\b|^(?:Terminated|Segmentation fault)\b|core dumped|\bCANCELLED\b|\bdied with\b"
    r"|exited with exit code [1-9-]",
    re.I,
)


@dataclass(frozen=True, slots=True)
class LogNote:
    """A line of a text log that reports a problem: NaN, overflow, an error."""

    step: int
    row: int
    line: int
    text: str


class TextLog:
    """Turns the lines of a text log into records. Holds the epoch and the step reached, and how steps are counted."""

    def __init__(self, *, most_notes: int = 1000) -> None:
        self.notes: list[LogNote] = []
        self.total_steps: int | None = None
        self.total_epochs: int | None = None
        self._most_notes = most_notes
        self.lines = 0
        self._rows = 0
        self._epoch: float | None = None
        self._first_epoch: float | None = None
        self._offset = 0  # steps of the epochs before, where each epoch counts from its start
        self._count = -1  # the step as the log counts it
        self._epoch_of_count: float | None = None
        self._step: int | None = None
        self._shapes = Shapes()
        self._tables = TableLines()
        self._block: dict[str, object] | None = None  # of the line before, to which a line below it may add
        self._largest = 0  # the most steps that a progress bar has announced

    def records(self, lines: list[str]) -> list[dict[str, object]]:
        """The records among these lines, in order."""
        found = []
        for raw in lines:
            self.lines += 1
            line = _ESCAPES.sub("", raw) if "\x1b" in raw or not raw.isprintable() else raw
            record = self._record(self._tables.spelt(line))
            if record is not None:
                found.append(record)
                self._rows += 1
        self._block = None  # what was returned does not change any more
        return found

    def _record(self, line: str) -> dict[str, object] | None:
        """The values of a line of a text log; `None` for a line without any, which is noted if it reports trouble."""
        shape, numbers = self._shapes.read(line)
        placed = shape.epoch is not None or shape.count is not None
        if placed:
            self._follow(shape, numbers)
        above, self._block = self._block, None
        below = not placed and (line[:1].isspace() or above is not None)
        if not shape.values or not (shape.is_record or (below and self._step is not None)):
            if placed or (above is not None and (line[:1].isspace() or not line)):
                self._block = {} if placed else above
            if _TROUBLE.search(line):
                self.notes.append(LogNote(self._step or 0, self._rows, self.lines, line.strip()[:500]))
                if len(self.notes) > self._most_notes:
                    del self.notes[self._most_notes // 2]  # the last lines say how the run ended
            return None
        record: dict[str, object] = {name: as_number(numbers[place]) for name, place in shape.values}
        if above and below and not above.keys() & record.keys():
            above |= record
            self._block = above
            return None
        self._block = record
        if self._step is not None:
            record["step"] = self._step
        if self._epoch is not None and "epoch" not in record:
            record["epoch"] = self._epoch
        return record

    def _follow(self, shape: Shape, numbers: list[str]) -> None:
        """Keep count of epoch and step."""
        epoch = None if shape.epoch is None else _whole_or_not(numbers[shape.epoch])
        if epoch is not None:
            if self._first_epoch is None:
                self._first_epoch = epoch
            self._epoch = epoch
            if shape.epochs is not None:
                self.total_epochs = _count(numbers[shape.epochs])
        count = None if shape.count is None else _count(numbers[shape.count], shape.count_unit)
        total = None if shape.total is None else _count(numbers[shape.total], shape.total_unit)
        if count is None:
            return
        if total and epoch is None and total < self._largest:
            return  # the bar of an evaluation, or of the epochs, next to that of the steps
        self._largest = max(self._largest, total or 0)
        within = shape.within
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


def _whole_or_not(text: str) -> float | None:
    number = as_number(text)
    return number if isinstance(number, float) and 0 <= number < 1e9 else None


def _count(text: str, unit: int = 1) -> int | None:
    number = as_number(text)
    return int(number * unit) if isinstance(number, float) and 0 <= number < 1e15 else None
