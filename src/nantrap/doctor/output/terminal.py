"""The report for a person: the status first, then the findings with the line they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.text import Text

from nantrap.doctor.findings import Fact, Finding, Report
from nantrap.incident.wording import counted, visible

_STYLES: Final = {"high": "bold red", "medium": "bold yellow", "low": "cyan"}
_ORDER: Final = {"high": 0, "medium": 1, "low": 2}
_ROWS: Final = (
    "AMP",
    "fp16",
    "learning rate",
    "smallest lr",
    "warm-up",
    "clipping",
    "accumulation",
    "batch size",
    "optimizer",
    "mixed precision",
    "distributed type",
    "devices",
)
_SHOWN_FILES: Final = 6
"""Files in the status of a terminal; --json has all."""


def as_text(report: Report, *, low: bool = True, line_of: Callable[[str, int], str] | None = None) -> list[Text]:
    """The lines of the report.

    Args:
        report: what was found.
        low: whether findings of low risk are shown one by one.
        line_of: gives the text of a line of a file, to be shown below its finding.
    """
    lines = [*_status(report), *_alignment(report), Text()]
    shown = sorted(report.findings, key=lambda each: (_ORDER[each.risk], each.file, each.line))
    for finding in shown:
        if low or finding.risk != "low":
            lines += _finding(finding, line_of)
    for note in report.notes[:20]:
        where = f"{note.file}:{note.line}" if note.line else note.file
        lines.append(Text.assemble(("note", "dim"), f": {visible(where)}: {visible(note.message)}"))
    if len(report.notes) > 20:
        lines.append(Text(f"note: {len(report.notes) - 20:,} more files were left out (--json lists all)"))
    lines.append(_summary(report))
    return lines


def _status(report: Report) -> list[Text]:
    """The block of settings: every value with its file and line."""
    if not report.facts:
        return [Text("no training settings were found")]
    lines = [Text("settings", style="bold")]
    files = list(dict.fromkeys(fact.file for fact in report.facts))
    for file in files[:_SHOWN_FILES]:
        lines.append(Text(f"  {visible(file)}"))
        facts = [fact for fact in report.facts if fact.file == file]
        for fact in sorted(facts, key=lambda each: _ROWS.index(each.name)):
            lines.append(Text.assemble(f"    {fact.name:<17} ", (_shown(fact), "bold"), (f"  line {fact.line}", "dim")))
    if len(files) > _SHOWN_FILES:
        lines.append(Text(f"  and {len(files) - _SHOWN_FILES:,} more files with settings (--json lists all)"))
    return lines


def _alignment(report: Report) -> list[Text]:
    """Whether files that name a precision contradict each other, in one line."""
    named = [fact for fact in report.facts if fact.name == "mixed precision"]
    if report.alignment:
        count = len(report.alignment)
        return [
            Text.assemble("  ", ("not aligned", "bold red"), f": {count} contradiction{'s' * (count > 1)}, see below")
        ]
    if len({fact.file for fact in named}) > 1:
        return [Text.assemble("  ", ("aligned", "bold green"), ": no two files contradict each other")]
    return []


def _finding(finding: Finding, line_of: Callable[[str, int], str] | None) -> list[Text]:
    """A finding as lines: what, where, the source line and the fix."""
    lines = [
        Text.assemble(
            (finding.risk, _STYLES[finding.risk]),
            (f"[{finding.code}]", "bold"),
            f" {finding.slug}: {visible(finding.message)}",
        ),
        Text.assemble(("  --> ", "blue"), f"{visible(finding.file)}:{finding.line}"),
    ]
    text = line_of(finding.file, finding.line).rstrip() if line_of is not None else ""
    if text.strip():
        number = f"{finding.line}"
        lines.append(Text.assemble((f"{number:>5} | ", "blue"), visible(text.expandtabs(4))[:160]))
    lines.append(Text.assemble(("  fix", "bold cyan"), f": {visible(finding.fix)}"))
    return lines


def _summary(report: Report) -> Text:
    counts = [(risk, sum(each.risk == risk for each in report.findings)) for risk in ("high", "medium", "low")]
    parts = ", ".join(f"{count} {risk}" for risk, count in counts if count) or "no findings"
    files = f"{counted(len(report.files_read), 'file')} read"
    more = "; `nantrap explain CODE` explains each" if report.findings else ""
    return Text(f"{files}: {parts}{more}")


def _shown(fact: Fact) -> str:
    value: Any = fact.value
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else visible(value)


def reader(texts: dict[str, Sequence[str]]) -> Callable[[str, int], str]:
    """A `line_of` that reads files as they are needed and keeps them."""

    def line_of(file: str, line: int) -> str:
        """A line of a file, read once; empty if it cannot be read."""
        if file not in texts:
            try:
                with open(file, encoding="utf-8", errors="replace") as stream:
                    texts[file] = stream.read().splitlines()
            except OSError:
                texts[file] = []
        lines = texts[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""

    return line_of
