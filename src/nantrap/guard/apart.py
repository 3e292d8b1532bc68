"""Ranks that train one model and exchange nothing (`Join`, a rank without a guard): what one contains alone.

Every rank applies a step whose averaged gradients are finite. Buffers are each rank's own, so a rank can put them back
without the others. An update that went wrong on one rank can only be undone there.
"""

from __future__ import annotations

from nantrap.guard.judge import Verdict
from nantrap.guard.observation import observe
from nantrap.guard.parts import Parts
from nantrap.guard.reading import Reading
from nantrap.guard.window import Window


def put_back_buffers(parts: Parts, window: Window, reading: Reading) -> None:
    """The step is applied, as on the other ranks; the buffers that became non-finite here are put back."""
    verdict = Verdict(bad=True, harmful=True, bad_ranks=(parts.ranks.rank,))
    micro = reading.guilty or window.micros[-1]
    observation = observe(parts.protected, micro, reading.norm, verdict=verdict, buffers_bad=True, copy_gradients=True)
    names = ", ".join(found.name for found in observation.findings if found.kind == "buffer")
    with parts.protected.kept():
        draft = parts.diagnosis.draft(observation)
    parts.protected.buffers.restore()
    words = f"the step was applied, because the other ranks cannot be told here; put back on this rank: {names}"
    window.drafts.append((draft, words))
