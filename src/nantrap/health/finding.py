"""What a check of a run says, and the verdict that the findings add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nantrap.incident.codec import encode

Outcome = Literal["pass", "warn", "fail", "unknown"]
Word = Literal["healthy", "doubtful", "sick", "unknown"]
_ORDER: tuple[Outcome, ...] = ("unknown", "pass", "warn", "fail")
_WORDS: dict[Outcome, Word] = {"pass": "healthy", "warn": "doubtful", "fail": "sick", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: the name of the check (`loss_falls`, `applied`, ...).
        outcome: `pass`, `warn`, `fail`, or `unknown` where the log does not hold what the check needs.
        summary: one sentence with the numbers.
        evidence: the numbers by name, for programs.
        help: what to do about it; empty if there is nothing to do.
    """

    check: str
    outcome: Outcome
    summary: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    help: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        document: dict[str, Any] = encode({name: getattr(self, name) for name in self.__slots__})
        return document


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """A stage of the plan against the run. `state` says whether the run has passed through it."""

    name: str
    span: str
    state: Literal["not reached", "in progress", "ended early", "complete"]
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of its findings."""
        return worst(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "name": self.name, "span": self.span, "state": self.state, "outcome": self.outcome,
            "findings": [finding.to_dict() for finding in self.findings],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
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
    findings: tuple[Finding, ...]
    stages: tuple[StageVerdict, ...] = ()
    advice: str = ""

    @property
    def outcome(self) -> Outcome:
        """The worst of all findings, stages included. A run without a loss is not judged by the rest alone."""
        found = worst([*self.findings, *(finding for stage in self.stages for finding in stage.findings)])
        no_loss = any(finding.check == "loss_finite" and finding.outcome == "unknown" for finding in self.findings)
        return "unknown" if found == "pass" and no_loss else found

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


def worst(findings: Iterable[Finding]) -> Outcome:
    """The worst outcome; `unknown` where there is nothing to judge."""
    return max((finding.outcome for finding in findings), key=_ORDER.index, default="unknown")
