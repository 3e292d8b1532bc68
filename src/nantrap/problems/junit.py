"""JUnit XML, for test dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from nantrap.incident.wording import visible


class JUnitCase(NamedTuple):
    """One test case. `said` is the message of a failure or of a skip, or what a test that passed printed."""

    group: str
    name: str
    outcome: Literal["passed", "failed", "skipped"]
    said: str = ""
    body: str = ""


def junit_document(name: str, cases: Sequence[JUnitCase]) -> str:
    """A suite of test cases as an XML document."""
    suite = ElementTree.Element("testsuite", name=visible(name))
    for case in cases:
        _add(suite, case)
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.outcome == "failed" for case in cases)))
    suite.set("skipped", str(sum(case.outcome == "skipped" for case in cases)))
    suite.set("errors", "0")
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, case: JUnitCase) -> None:
    """Add the element of a test case to its suite."""
    element = ElementTree.SubElement(
        suite, "testcase", classname=f"nantrap.{visible(case.group)}", name=visible(case.name)
    )
    said = visible(case.said)
    if case.outcome == "failed":
        ElementTree.SubElement(element, "failure", message=said).text = visible(case.body)
    elif case.outcome == "skipped":
        ElementTree.SubElement(element, "skipped", message=said)
    elif said:
        ElementTree.SubElement(element, "system-out").text = said
