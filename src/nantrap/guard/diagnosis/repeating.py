"""How large the guilty operation's result was over the last steps: they are made again, from an older state.

Only `guard.attempt` keeps what is needed: anchors, and the batches since then. The steps run as a trial runs them, with
a mode that measures one operation. What it saw counts only if the last of them, the failed step, fails as it did.
Everything is put back afterwards, and nothing of this runs before a failure.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nantrap.incident import Magnitudes
from nantrap.locate.replay.replay import fails_alike
from nantrap.locate.torch_private import DispatchMode, is_in_backward
from nantrap.locate.trace import Op
from nantrap.locate.trace.operations import op_name
from nantrap.locate.trace.storage import extremes, tensors_in

if TYPE_CHECKING:  # the rules are many: imported by the first failure
    from nantrap.causes.case import Case

_SHOWN = 32


def repeated_magnitudes(case: Case, *, seconds: float) -> Magnitudes | None:
    """The magnitude of the guilty operation's result by step; `None` where the steps cannot be made again in time.

    Args:
        case: the failed step with its place; its trials are over.
        seconds: how long this may take.
    """
    failed, replay = case.failure, case.location.replay
    op = replay.op if replay is not None else None
    if op is None or op.phase not in ("forward", "backward") or not failed.repeatable or failed.crew is not None:
        return None
    from nantrap.causes.earlier_steps import drivable, driven, own_rate

    known = drivable(case.run.anchors, failed.step)
    if failed.averaged or known is None:
        return None
    steps = [attempt.step for attempt in known[1] if attempt.applied for _ in attempt.batches]
    assert replay is not None
    watched = _OneOperation(op, _occurrence(replay.trace.ops, op), time.monotonic() + seconds)

    def begins(batch: Any) -> Any:
        watched.next_pass()
        return batch

    try:
        with watched:
            result = driven(case, own_rate, begins)
    except Exception:  # a history is worth less than the incident: what cannot be repeated is not shown
        return None
    if result.finite or result.loss is None or not fails_alike(failed, result.loss, result.bad):
        return None
    if len(watched.passes) != len(steps) + 1 or watched.passes[-1] is not None:  # the last one is not finite
        return None
    largest: dict[int, float] = {}
    for step, number in zip(steps, watched.passes[:-1], strict=True):
        if number is not None:
            largest[step] = max(number, largest.get(step, 0.0))
    if not largest:
        return None
    found = {str(step): largest[step] for step in sorted(largest)[-_SHOWN:]}
    words = f"the result of {op.name}" + (f" in {op.module}" if op.module else "")
    return Magnitudes(words, op.dtype, "repeated", found)


def _occurrence(ops: list[Op], op: Op) -> int:
    """The how-many-th operation of its name it is, in its phase."""
    return sum(1 for other in ops[: op.index] if other.name == op.name and other.phase == op.phase)


class _OneOperation(DispatchMode):
    """Measures one operation of each pass: the same name, the same place in the order of those."""

    def __init__(self, op: Op, occurrence: int, deadline: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.passes: list[float | None] = []
        self._name = op.name
        self._backward = op.phase == "backward"
        self._occurrence = occurrence
        self._count = 0
        self._deadline = deadline

    def next_pass(self) -> None:
        """A forward pass begins."""
        if time.monotonic() > self._deadline:
            raise TimeoutError("the steps take too long")
        self.passes.append(None)
        self._count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and measure its result if it is the one."""
        result = func(*args, **(kwargs or {}))
        if op_name(func) == self._name and self.passes and is_in_backward() == self._backward:
            if self._count == self._occurrence:
                tensors = list(tensors_in(args[:1] if result is None else result))
                self.passes[-1] = max((a for t in tensors if (a := extremes(t)[2]) is not None), default=None)
            self._count += 1
        return result
