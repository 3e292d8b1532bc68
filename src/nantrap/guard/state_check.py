"""A check of the whole state on demand or before an epoch, and the line that reports what was found."""

from __future__ import annotations

from nantrap.guard.parts import Parts
from nantrap.incident import Finding
from nantrap.incident.wording import escaped, some_of

_SHOWN = 3
_KINDS = {"optimizer_state": "optimizer state", "ema": "averaged weight"}


def check_state(parts: Parts, *, in_forward: bool = False) -> list[Finding]:
    """Check everything now, and print one line about it unless the guard is quiet.

    Args:
        parts: of a guard.
        in_forward: the forward pass of a step has run already. Then buffers are left to the judgement of that step,
            which puts back what a bad batch did to them.

    Returns:
        What is not finite.
    """
    found = parts.protected.check(buffers=not in_forward)
    epoch = parts.progress.epoch
    if found:
        when = "state is not finite" + ("" if epoch is None else f" before epoch {epoch:,}")
        parts.recorder.say(f"{when}: {some_of([_described(finding) for finding in found], _SHOWN)}")
    elif epoch is not None:
        parts.recorder.say(f"parameters ok before epoch {epoch:,}")
    else:
        parts.recorder.say(f"state ok: {parts.protected.count():,} tensors are finite")
    return found


def _described(finding: Finding) -> str:
    stats = f" ({finding.stats.describe()})" if finding.stats is not None else ""
    return f"{_KINDS.get(finding.kind, finding.kind)} {escaped(finding.name)}{stats}"
