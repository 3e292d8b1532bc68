"""What is checked outside the order of a step.

A batch before its forward pass (`BatchChecks.finite`), and the whole state on demand or before an epoch.
"""

from __future__ import annotations

from typing import Any

from nantrap.guard.collect import Collector
from nantrap.guard.diagnosis.describe import bad_batch
from nantrap.guard.driver import Driver
from nantrap.guard.dropping import drop
from nantrap.guard.judge import Flags
from nantrap.guard.refusal import refuse_batch
from nantrap.guard.session import Session
from nantrap.guard.window import Outcome
from nantrap.incident import Finding
from nantrap.incident.wording import escaped, some_of
from nantrap.locate import batch_findings

_SHOWN = 3
_KINDS = {"optimizer_state": "optimizer state", "ema": "averaged weight"}


def check_state(session: Session, *, in_forward: bool = False) -> list[Finding]:
    """Check everything now, and print one line about it unless the guard is quiet.

    Args:
        session: of the run.
        in_forward: the forward pass of a step has run already. Then buffers are left to the judgement of that step,
            which restores what a bad batch changed in them.

    Returns:
        What is not finite.
    """
    found = session.protected.check(buffers=not in_forward)
    epoch = session.progress.epoch
    if found:
        when = "state is not finite" + ("" if epoch is None else f" before epoch {epoch:,}")
        session.recorder.say(f"{when}: {some_of([_described(finding) for finding in found], _SHOWN)}")
    elif epoch is not None:
        session.recorder.say(f"parameters ok before epoch {epoch:,}")
    else:
        session.recorder.say(f"state ok: {session.protected.count():,} tensors are finite")
    return found


def _described(finding: Finding) -> str:
    stats = f" ({finding.stats.describe()})" if finding.stats is not None else ""
    return f"{_KINDS.get(finding.kind, finding.kind)} {escaped(finding.name)}{stats}"


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
