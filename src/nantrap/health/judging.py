"""The verdict on a run: every check, then the plan."""

from __future__ import annotations

import time

import numpy as np

from nantrap.health.checks import CHECKS
from nantrap.health.expectations import Expectations
from nantrap.health.finding import Finding, Verdict, worst
from nantrap.health.planned import compare, judge_stage
from nantrap.health.window import whole
from nantrap.health.words import duration
from nantrap.record import Run


def judge(
    run: Run, *, expect: Expectations | None = None, stalled_after: float | None = None, now: float | None = None
) -> Verdict:
    """Judge a run.

    Args:
        run: as `record.open_run` gave it.
        expect: what it should do, as a whole and stage by stage.
        stalled_after: seconds without a new line after which a run that is not finished counts as stalled.
        now: the time, in seconds since the epoch, for the age of the last line.
    """
    window = whole(run)
    steps = len(run.main)
    last = int(run.main.step[-1]) if steps else -1
    age = max(0.0, (time.time() if now is None else now) - run.modified)
    finished = run.is_over
    error = "" if run.end is None else str(run.end.fields.get("error", ""))
    state = f"ended by {error}" if error else "finished" if finished else f"last written {duration(age)} ago"
    if not steps:
        return Verdict(
            str(run.path), run.kind, 0, -1, "no steps", (Finding("steps", "unknown", "no step in the log yet"),)
        )
    with np.errstate(all="ignore"):  # huge values overflow in sums and differences; the checks treat what comes out
        findings = [finding for check in CHECKS for finding in check(window)]
    if stalled_after is not None and not finished:
        stalled = age > stalled_after
        words = f"last written {duration(age)} ago ({'more' if stalled else 'less'} than {duration(stalled_after)})"
        findings.append(Finding("stalled", "fail" if stalled else "pass", words, {"seconds": round(age, 1)}))
    if expect is None:
        return Verdict(str(run.path), run.kind, steps, last, state, tuple(findings))
    with np.errstate(all="ignore"):
        findings += compare(window, expect.run)
        stages = tuple(judge_stage(window, stage, expect) for stage in expect.stages)
    done = bool(stages) and all(stage.state == "complete" and worst(stage.findings) == "pass" for stage in stages)
    return Verdict(str(run.path), run.kind, steps, last, state, tuple(findings), stages, expect.then if done else "")
