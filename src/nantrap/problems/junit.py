"""JUnit XML, for test dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from nantrap.incident.wording import visible


class JUnitCase(NamedTuple):
    """One test case.

    Attributes:
        group: the class that it belongs to, below `nantrap`.
        name: what is tested.
        outcome: how it went.
        said: the message of a failure or of a skip, or what a test that passed printed.
        body: more about a failure.
        kind: the kind of a failure, if it has one.
    """

    group: str
    name: str
    outcome: Literal["passed", "failed", "skipped"]
    said: str = ""
    body: str = ""
    kind: str = ""


def junit_document(name: str, cases: Sequence[JUnitCase], *, inside: str = "") -> str:
    """A suite of test cases as an XML document; below an element `inside`, it does not count skipped tests."""
    suite = ElementTree.Element("testsuite", name=visible(name))
    for case in cases:
        _add(suite, case)
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.outcome == "failed" for case in cases)))
    if not inside:
        suite.set("skipped", str(sum(case.outcome == "skipped" for case in cases)))
    suite.set("errors", "0")
    root = suite
    if inside:
        root = ElementTree.Element(inside)
        root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(suite: ElementTree.Element, case: JUnitCase) -> None:
    """Add the element of a test case to its suite."""
    element = ElementTree.SubElement(
        suite, "testcase", classname=f"nantrap.{visible(case.group)}", name=visible(case.name)
    )
    said = visible(case.said)
    if case.outcome == "failed":
        kind = {"type": case.kind} if case.kind else {}
        ElementTree.SubElement(element, "failure", {**kind, "message": said}).text = visible(case.body)
    elif case.outcome == "skipped":
        ElementTree.SubElement(element, "skipped", message=said)
    elif said:
        ElementTree.SubElement(element, "system-out").text = said
