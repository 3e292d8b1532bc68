"""Incidents of which everything is known when they are found: nothing is run again, so they need no diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nantrap.guard.diagnosis.completing import began_elsewhere, with_explanation
from nantrap.guard.drafts import Draft, build_incident
from nantrap.guard.judge import Verdict
from nantrap.guard.parts import Parts
from nantrap.guard.state.rates import current_rates
from nantrap.guard.window import Window
from nantrap.incident import Cause, Evidence, Finding, Fix
from nantrap.locate import FailedStep, Location, batch_size
from nantrap.locate.replay.samples import dataset_indices


def bad_batch(parts: Parts, findings: Sequence[Finding], verdict: Verdict | None = None, *, batch: Any = None) -> Draft:
    """A batch that was found bad before the forward pass, here or on another rank.

    Args:
        parts: the collaborators of the step.
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
            fix=Fix(text=f"clean or drop the sample where the dataset makes {first.name}"),
        )
        causes = (cause,)
    else:
        notes = (began_elsewhere(verdict.origin_rank if verdict else None),)
    incident = build_incident(
        parts.progress,
        rank=parts.ranks.rank,
        verdict=verdict,
        phase="data",
        module="data",
        findings=findings,
        causes=causes,
        samples=guilty,
        inputs=findings,
        rates=current_rates(parts.protected.optimizer),
        notes=notes,
    )
    indices = dataset_indices(batch, guilty, batch_size(batch))
    return Draft(replace(incident, dataset_indices=indices), worth_a_bundle=bool(findings))


def rank_divergence(parts: Parts, checksums: tuple[float, ...]) -> Draft:
    """The ranks hold different parameters. Nothing is run again: the numbers are enough."""
    from nantrap.causes import Case, explain_case

    protected = parts.protected
    incident = build_incident(
        parts.progress,
        rank=parts.ranks.rank,
        verdict=Verdict(bad_ranks=parts.ranks.members, contested=True),
        phase="state",
        rates=current_rates(protected.optimizer),
    )
    failed = FailedStep(
        step=parts.progress.step,
        root=protected.root,
        parameters=dict(protected.members.named()),
        optimizer=protected.optimizer,
        symptom="state",
        loss=None,
        loss_value=math.nan,
        gradients={},
        restore_buffers=protected.ledger.restore_buffers,
    )
    case = Case(failed, Location(phase="state"), incident, parts.recorder.history(), checksums=checksums)
    return Draft(with_explanation(incident, explain_case(case, seconds=0.0)))


def dropped_terms(parts: Parts, window: Window, loss: float, terms: dict[str, float]) -> Draft:
    """A step that was applied without loss terms whose values are bad."""
    return Draft(
        build_incident(
            parts.progress,
            rank=parts.ranks.rank,
            phase="forward",
            module="loss",
            findings=window.findings,
            loss=loss,
            terms=terms,
            rates=current_rates(parts.protected.optimizer),
            notes=('the other terms were applied, as Policy(bad_terms="drop") asks',),
        )
    )
