"""Incidents of which everything is known when they are found: nothing is run again, so they need no diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nantrap.guard.diagnosed import Diagnosed
from nantrap.guard.diagnosis.describe import began_elsewhere, new_incident, with_explanation
from nantrap.guard.judge import Verdict
from nantrap.guard.session import Session
from nantrap.guard.window import Window
from nantrap.incident import Cause, Evidence, Finding, Fix
from nantrap.locate import Failure, Location, RunFacts, batch_size
from nantrap.locate.replay.samples import dataset_indices


def bad_batch(
    session: Session, findings: Sequence[Finding], verdict: Verdict | None = None, *, batch: Any = None
) -> Diagnosed:
    """A batch that was found bad before the forward pass, here or on another rank.

    Args:
        session: of the run.
        findings: what is bad in it.
        verdict: of all ranks.
        batch: the batch, which may carry the dataset's indices.
    """
    guilty = tuple(sorted({i for f in findings for i in f.samples}))
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    if findings:
        first = findings[0]
        described = first.stats.describe() if first.stats else ""
        cause = Cause(
            "bad_input_data",
            proven=True,
            risk="medium",
            confidence=1.0,
            summary=f"the batch holds non-finite values: {first.name}",
            evidence=(Evidence(f"{first.name}: {described}, before the forward pass"),),
            fix=Fix(text=f"fix or remove the sample where the dataset creates {first.name}"),
        )
        causes = (cause,)
    else:
        notes = (began_elsewhere(verdict.origin_rank if verdict else None),)
    incident = replace(
        new_incident(session, "data", verdict=verdict),
        module="data",
        findings=tuple(findings),
        causes=causes,
        samples=guilty,
        inputs=tuple(findings),
        notes=notes,
        dataset_indices=dataset_indices(batch, guilty, batch_size(batch)),
    )
    return Diagnosed(incident, worth_a_bundle=bool(findings))


def rank_divergence(session: Session, checksums: tuple[float, ...]) -> Diagnosed:
    """The ranks hold different parameters. Nothing is run again: the numbers are enough."""
    from nantrap.causes import Case, explain_case

    protected = session.protected
    verdict = Verdict(bad_ranks=session.ranks.members, contested=True)
    incident = new_incident(session, "state", verdict=verdict)
    failure = Failure(
        step=session.progress.step,
        root=protected.root,
        parameters=dict(protected.members.named()),
        optimizer=protected.optimizer,
        symptom="state",
        loss=None,
        loss_value=math.nan,
        gradients={},
        restore_buffers=protected.ledger.restore_buffers,
        run=RunFacts(session.recorder.history(), checksums=checksums),
    )
    case = Case(failure, Location(phase="state"), incident)
    return Diagnosed(with_explanation(incident, explain_case(case)))


def dropped_terms(session: Session, window: Window, loss: float, terms: dict[str, float]) -> Diagnosed:
    """A step that was applied without loss terms whose values are bad."""
    incident = replace(
        new_incident(session, "forward"),
        module="loss",
        findings=tuple(window.findings),
        loss=loss,
        terms=terms,
        notes=('the other terms were applied, as Policy(bad_terms="drop") asks',),
    )
    return Diagnosed(incident)
