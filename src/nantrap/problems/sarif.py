"""SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nantrap._version import __version__
from nantrap.incident.wording import visible
from nantrap.problems.problem import Problem


def sarif_document(problems: Sequence[Problem], *, tool: str, rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The problems as a SARIF log.

    Args:
        problems: what was found; `data["times"]`, where it is there, says how often.
        tool: the name of the tool that found them.
        rules: the rule of every code, each with its `id`.
    """
    index = {rule["id"]: position for position, rule in enumerate(rules)}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": tool, "version": __version__, "rules": list(rules)}},
                "results": [_result(problem, index) for problem in problems],
            }
        ],
    }


def _result(problem: Problem, index: Mapping[str, int]) -> dict[str, Any]:
    """A problem as a result of SARIF."""
    message = visible(problem.message)
    result: dict[str, Any] = {
        "ruleId": problem.code,
        "ruleIndex": index[problem.code],
        "level": problem.severity,
        "message": {"text": f"{message}. Fix: {visible(problem.fix)}" if problem.fix else message},
    }
    if "times" in problem.data:
        result["occurrenceCount"] = problem.data["times"]
    if problem.place.file:
        place: dict[str, Any] = {"artifactLocation": {"uri": _address(problem.place.file)}}
        if problem.place.line > 0:
            place["region"] = {"startLine": problem.place.line}
        result["locations"] = [{"physicalLocation": place}]
    return result


def _address(file: str) -> str:
    address = quote(Path(file).as_posix())
    return f"file://{address}" if address.startswith("/") else address
