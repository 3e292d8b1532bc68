"""A check of the whole state on demand or before an epoch, and the line that reports what was found."""

from __future__ import annotations

from nantrap.guard.session import Session
from nantrap.incident import Finding
from nantrap.incident.wording import escaped, some_of

_SHOWN = 3
_KINDS = {"optimizer_state": "optimizer state", "ema": "averaged weight"}


def check_state(session: Session, *, in_forward: bool = False) -> list[Finding]:
    """Check everything now, and print one line about it unless the guard is quiet.

    Args:
        session: of the run.
        in_forward: the forward pass of a step has run already. Then buffers are left to the judgement of that step,
            which puts back what a bad batch did to them.

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
