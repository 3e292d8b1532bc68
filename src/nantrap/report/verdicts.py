"""The verdict on a run as text, as JUnit XML for test dashboards, and as annotations for GitHub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from nantrap.health import Finding, Verdict
from nantrap.incident.wording import visible
from nantrap.problems.github import command_property, command_text

_SIGNS: Final = {"pass": "✓", "warn": "▲", "fail": "✖", "unknown": "?"}
_COLOURS: Final = {"pass": "32", "warn": "33", "fail": "31", "unknown": "2"}
_KINDS: Final = {
    "nantrap": "nantrap journal", "jsonl": "JSON lines", "json": "JSON log", "csv": "table", "text": "text log",
    "tensorboard": "TensorBoard events",
}  # fmt: skip
_WORD_OUTCOME: Final = {"healthy": "pass", "doubtful": "warn", "sick": "fail", "unknown": "unknown"}


def verdict_as_text(verdict: Verdict, *, color: bool = False) -> str:
    """The verdict for a terminal: one line per check, each with a sign and a word."""
    kind = _KINDS.get(verdict.kind, verdict.kind)
    head = f"{_mark(_WORD_OUTCOME[verdict.word], verdict.word, color=color)}  {visible(verdict.run)}"
    lines = [f"{head}  ({kind}, {verdict.steps:,} rows, last step {verdict.last_step:,}, {visible(verdict.state)})"]
    lines += _lines(verdict.findings, "  ", color=color)
    for stage in verdict.stages:
        outcome = "unknown" if stage.state == "not reached" else stage.outcome
        lines.append(_mark(outcome, f"stage: {visible(stage.name)} ({stage.span}, {stage.state})", color=color))
        lines += _lines(stage.findings, "    ", color=color)
    if verdict.advice:
        lines.append(f"next: {visible(verdict.advice)}")
    return "\n".join(lines)


def verdict_as_junit(verdict: Verdict) -> str:
    """The verdict as JUnit XML: one test case per check; what fails is a failure, what is not known is skipped."""
    cases = [("run", finding) for finding in verdict.findings]
    cases += [(f"stage {stage.name}", finding) for stage in verdict.stages for finding in stage.findings]
    failures = sum(finding.outcome == "fail" for _, finding in cases)
    skipped = sum(finding.outcome == "unknown" for _, finding in cases)
    counts = f'tests="{len(cases)}" failures="{failures}" skipped="{skipped}" errors="0"'
    name = _quoted(f"nantrap check {verdict.run}")
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuite name={name} {counts}>"]
    for suite, finding in cases:
        opening = f"  <testcase classname={_quoted('nantrap.check.' + suite)} name={_quoted(finding.check)}"
        if finding.outcome == "fail":
            body = escape(visible(finding.help))
            lines.append(f"{opening}><failure message={_quoted(finding.summary)}>{body}</failure></testcase>")
        elif finding.outcome == "unknown":
            lines.append(f"{opening}><skipped message={_quoted(finding.summary)}/></testcase>")
        else:
            word = "warning: " if finding.outcome == "warn" else ""
            lines.append(f"{opening}><system-out>{escape(word + visible(finding.summary))}</system-out></testcase>")
    return "\n".join([*lines, "</testsuite>"])


def verdict_as_github(verdict: Verdict) -> str:
    """The verdict as workflow commands: errors and warnings that GitHub shows with the run."""
    lines = []
    for place, finding in [
        *(("", finding) for finding in verdict.findings),
        *((f"{stage.name}: ", finding) for stage in verdict.stages for finding in stage.findings),
    ]:
        level = {"fail": "error", "warn": "warning"}.get(finding.outcome)
        if level is not None:
            title = _property(f"nantrap check: {finding.check}")
            lines.append(f"::{level} title={title}::{command_text(place + finding.summary)}")
    lines.append(f"::notice title=nantrap check::{command_text(f'{verdict.run}: {verdict.word}')}")
    return "\n".join(lines)


def _lines(findings: tuple[Finding, ...], indent: str, *, color: bool) -> Iterator[str]:
    for finding in findings:
        yield f"{indent}{_mark(finding.outcome, f'{finding.check:<12}', color=color)} {visible(finding.summary)}"
        if finding.help and finding.outcome in ("warn", "fail"):
            yield f"{indent}  help: {visible(finding.help)}"


def _mark(outcome: str, words: str, *, color: bool) -> str:
    text = f"{_SIGNS[outcome]} {words}"
    return f"\x1b[{_COLOURS[outcome]}m{text}\x1b[0m" if color else text


def _quoted(text: str) -> str:
    return quoteattr(visible(text))


def _property(text: str) -> str:
    return command_property(visible(text))
