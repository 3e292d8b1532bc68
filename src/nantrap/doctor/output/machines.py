"""JSON, SARIF and GitHub annotations. Functions of the report."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import quote

from nantrap._version import __version__
from nantrap.doctor.findings import Finding, Report
from nantrap.incident.wording import visible
from nantrap.pages import check_pages
from nantrap.report.github import command_property, command_text

_LEVELS: Final = {"high": "error", "medium": "warning", "low": "note"}
_COMMANDS: Final = {"high": "error", "medium": "warning", "low": "notice"}


def as_json(report: Report) -> str:
    """The whole report."""
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)


def as_sarif(report: Report) -> str:
    """SARIF 2.1.0, for code scanning."""
    used = {finding.code for finding in report.findings}
    rules = [
        {
            "id": page.code,
            "name": page.slug,
            "shortDescription": {"text": page.title},
            "fullDescription": {"text": " ".join(page.what.split())},
            "help": {"text": page.text(), "markdown": page.markdown()},
        }
        for page in check_pages()
        if page.code in used
    ]
    index = {rule["id"]: position for position, rule in enumerate(rules)}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "nantrap doctor", "version": __version__, "rules": rules}},
                "results": [_result(finding, index) for finding in report.findings],
            }
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def as_github(report: Report) -> str:
    """One workflow command for each finding: an annotation at the line."""
    return "\n".join(
        f"::{_COMMANDS[each.risk]} file={command_property(each.file)},line={each.line},"
        f"title={command_property(f'{each.code} {each.slug}')}::{command_text(f'{each.message}. Fix: {each.fix}')}"
        for each in report.findings
    )


def _result(finding: Finding, index: dict[Any, int]) -> dict[str, Any]:
    """A finding as a result of SARIF."""
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": _LEVELS[finding.risk],
        "message": {"text": f"{visible(finding.message)}. Fix: {visible(finding.fix)}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(finding.file.replace("\\", "/"))},
                    "region": {"startLine": finding.line},
                }
            }
        ],
    }
