"""The pytest plugin: `nantrap_preflight` and `assert_replays_clean` as fixtures. Imports torch only when used.

def test_stable(nantrap_preflight):
    nantrap_preflight(make_everything)

def test_the_old_failure_is_gone(assert_replays_clean):
    assert_replays_clean("tests/incidents/001204-r0", loss_of_the_batch)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nantrap.doctor.preflight import PreflightReport
    from nantrap.guard.replaying import ReplayResult


def run_preflight(target: Any, *, strict: bool = False, **given: Any) -> PreflightReport:
    """Fail the test if a preflight check fails.

    Args:
        target: a factory, a dict, a module or `module:factory`, as for `nantrap.preflight`.
        strict: fail on warnings, too.
        given: optimizer, batch, loss, expected_loss; `guard=False` leaves out margins and drill, the longest part.

    Returns:
        The report.
    """
    import nantrap

    try:
        report = nantrap.preflight(target, **given)
    except nantrap.NantrapError as error:  # a factory that cannot be used: our own lines would not help
        pytest.fail(f"the preflight could not be made: {error}", pytrace=False)
    bad = [check for check in report.checks if check.status == "fail" or (strict and check.status == "warn")]
    if bad:
        lines = [
            f"{check.name}: {check.message}" + (f"\n    help: {check.help}" if check.help else "") for check in bad
        ]
        pytest.fail(f"preflight of {report.target} ({report.summary}):\n  " + "\n  ".join(lines), pytrace=False)
    return report


def assert_replays_clean(bundle: str | os.PathLike[str], entry: str | Callable[..., Any]) -> ReplayResult:
    """Fail the test if a captured failure still happens with today's code.

    Args:
        bundle: the folder of an incident, recorded with `Policy(bundle=Bundle(kind="full", data=True))`.
        entry: today's code, as `module:function` or a function, as for `nantrap replay --entry`: it takes the captured
            batch, or the model and the batch, and returns the loss; or takes nothing and returns model, optimizer and
            a function from batch to loss.

    Returns:
        What the replay showed.
    """
    import nantrap
    from nantrap.report import render_incident

    try:
        result = nantrap.replay(bundle, entry=entry)
    except nantrap.NantrapError as error:
        pytest.fail(f"{os.fspath(bundle)} could not be replayed: {error}", pytrace=False)
    if result.incident is not None:
        text = render_incident(result.incident, color=False)
        pytest.fail(f"{result.sentence}\nbundle: {os.fspath(bundle)}\n{text}", pytrace=False)
    return result


@pytest.fixture
def nantrap_preflight() -> Callable[..., PreflightReport]:
    """`nantrap_preflight(factory)` fails the test if a check of the preflight fails."""
    return run_preflight


@pytest.fixture(name="assert_replays_clean")
def assert_replays_clean_fixture() -> Callable[..., ReplayResult]:
    """`assert_replays_clean(bundle, entry)` fails the test if a captured failure is still there."""
    return assert_replays_clean
