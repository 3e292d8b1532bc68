"""The verdict on a run: every check, then the plan."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from nantrap.health.checks import CHECKS, incidents_apart
from nantrap.health.expectations import Expectations
from nantrap.health.findings import OUTCOMES, CheckOutcome, HealthFinding
from nantrap.health.other_logs import end_of_run, lost_values
from nantrap.health.planned import StageVerdict, compare, judge_stage
from nantrap.health.window import whole
from nantrap.incident.wording import counted, duration
from nantrap.problems import worst
from nantrap.record import Run

Word = Literal["healthy", "doubtful", "sick", "unknown"]
_WORDS: Final[dict[CheckOutcome, Word]] = {
    "pass": "healthy", "warn": "doubtful", "fail": "sick", "unknown": "unknown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The health of a run.

    Attributes:
        run: the run's path.
        kind: what wrote the log.
        steps: how many rows it has.
        last_step: the last step written, or -1.
        state: where the run is: `no steps`, `finished`, or `written N s ago`.
        findings: every check, in a fixed order.
        stages: the stages of the plan, if one was given.
        advice: what the plan says to do next, when all of its stages are passed.
    """

    run: str
    kind: str
    steps: int
    last_step: int
    state: str
    findings: tuple[HealthFinding, ...]
    stages: tuple[StageVerdict, ...] = ()
    advice: str = ""

    @property
    def outcome(self) -> CheckOutcome:
        """The worst of all findings, stages included. A run without a loss is not judged by the rest alone."""
        found = worst([*self.findings, *(finding for stage in self.stages for finding in stage.findings)])
        no_loss = any(finding.code == "loss_finite" and finding.severity == "unjudged" for finding in self.findings)
        return "unknown" if found == "ok" and no_loss else OUTCOMES[found]

    @property
    def word(self) -> Word:
        """The verdict in a word: `healthy`, `doubtful` (something warns), `sick` (something failed), `unknown`."""
        return _WORDS[self.outcome]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema": "nantrap.check/1",
            "run": self.run, "kind": self.kind, "steps": self.steps, "last_step": self.last_step, "state": self.state,
            "verdict": self.word,
            "findings": [finding.to_dict() for finding in self.findings],
            "stages": [stage.to_dict() for stage in self.stages],
            "advice": self.advice,
        }  # fmt: skip


def _of_optimizer(other: Run) -> HealthFinding:
    """The verdict on the journal of another optimizer, as one finding of the run."""
    found = [each for each in judge(other).findings if each.severity != "unjudged"]
    severity, tally = worst(found), other.tally()
    said = [each.message for each in found if each.severity == severity != "ok" and each.code != "applied"]
    words = [f"{tally.applied:,} of {counted(tally.attempted, 'step')} applied", *said]
    data = {"steps": tally.attempted, "applied": tally.applied, "incidents": tally.incidents}
    return HealthFinding(other.name, severity, "; ".join(words), data=data)


def judge(
    run: Run, *, expect: Expectations | None = None, stalled_after: float | None = None, now: float | None = None
) -> HealthVerdict:
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
        none = HealthFinding("steps", "unjudged", "no step in the log yet")
        said = (*incidents_apart(run.tally()), *lost_values(window), *end_of_run(window))
        return HealthVerdict(str(run.path), run.kind, 0, -1, "no steps", (none, *said))
    with np.errstate(all="ignore"):  # huge values overflow in sums and differences; the checks treat what comes out
        findings = [finding for check in CHECKS for finding in check(window)]
    findings += [_of_optimizer(other) for other in run.others]
    if run.names_not_read:
        text = f"{run.names_not_read:,} names of values were not read: of so many different names, 4,000 are"
        findings.append(HealthFinding("names", "error", text, data={"not_read": run.names_not_read}))
    if stalled_after is not None and not finished:
        stalled = age > stalled_after
        words = f"last written {duration(age)} ago ({'more' if stalled else 'less'} than {duration(stalled_after)})"
        findings.append(HealthFinding("stalled", "error" if stalled else "ok", words, data={"seconds": round(age, 1)}))
    if expect is None:
        return HealthVerdict(str(run.path), run.kind, steps, last, state, tuple(findings))
    with np.errstate(all="ignore"):
        findings += compare(window, expect.run)
        stages = tuple(judge_stage(window, stage, expect) for stage in expect.stages)
    done = bool(stages) and all(stage.state == "complete" and worst(stage.findings) == "ok" for stage in stages)
    return HealthVerdict(
        str(run.path), run.kind, steps, last, state, tuple(findings), stages, expect.then if done else ""
    )
