"""`BatchChecks(finite=True)`: batches that hold NaN or Inf are found before the forward pass."""

from __future__ import annotations

from typing import Any

from nantrap.guard.collect import Collector
from nantrap.guard.driver import Driver
from nantrap.guard.judge import Flags
from nantrap.guard.known import bad_batch
from nantrap.guard.micro_batches import drop
from nantrap.guard.outcome import Outcome
from nantrap.guard.refusal import refuse_batch
from nantrap.guard.session import Session
from nantrap.locate import batch_findings


def check_batches(
    session: Session, driver: Driver, collector: Collector, batches: tuple[Any, ...]
) -> tuple[Outcome | None, frozenset[int]]:
    """Refuse the step, or drop its bad micro-batches, before anything is computed.

    Returns:
        The outcome of a refused step, or `None`; and the micro-batches to leave out, by their place in the step.
    """
    found = [batch_findings(batch) for batch in batches]
    bad = [index for index, findings in enumerate(found) if findings]
    session.ranks.expect_all()
    verdict = session.ranks.agree(Flags(origin=bool(bad), harmful=bool(bad)))
    if not verdict.bad:
        return None, frozenset()
    window = collector.open()
    if not session.drops_micro_batches or len(bad) == len(batches):
        findings = [f for each in found for f in each]
        batch = batches[bad[0]] if len(bad) == 1 else None
        return refuse_batch(session, driver, window, findings, verdict, batch), frozenset()
    for index in bad:
        diagnosed = bad_batch(session, found[index], batch=batches[index])
        drop(session, window, diagnosed, f"micro-batch {index + 1} dropped, the others stay")
    return None, frozenset(bad)
