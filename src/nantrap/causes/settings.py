"""A number of the program (a temperature, a scale) that brought values out of the range of what came after."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nantrap.incident import Alternative, Cause, Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nantrap.causes.case import Case
    from nantrap.locate.trace import Op

_CAUSES = frozenset(
    {"exp_overflow", "log_of_zero", "division_by_zero", "singular_gradient_at_zero", "eps_underflow_half"}
)
"""What happens to an exponential, or behind one, that was given too much."""
_BETWEEN = frozenset(
    {"exp", "expm1", "softmax", "sigmoid", "sub", "neg", "sum", "amax", "clamp", "clamp_min", "add", "masked_fill",
     "view", "unsafe_view", "unsqueeze", "index", "gather", "mul", "div", "diagonal", "squeeze", "pow", "log",
     "_to_copy", "alias", "detach", "where", "fill_diagonal", "max"}
)  # fmt: skip
_TOO_FAR = 80.0
"""exp of a number of this size leaves the range of float32, in one direction or the other."""
_HARMLESS = 20.0
_LONGEST = 12


class ScalingNumber(NamedTuple):
    """A plain number that an operation of the program multiplied or divided by."""

    op: Op
    number: float
    reached: float
    """The largest magnitude after it."""

    @property
    def divides(self) -> bool:
        """Whether values were divided by it."""
        return _plain(self.op) == "div"

    @property
    def before(self) -> float:
        """The largest magnitude without it."""
        return self.reached * abs(self.number) if self.divides else self.reached / abs(self.number)


def with_setting(case: Case, cause: Cause) -> Cause:
    """The cause, with the number of the program that brought its values so far, if there is one."""
    found = _setting(case) if cause.slug in _CAUSES else None
    if found is None:
        return cause
    line = "" if found.op.place is None else f" in line {found.op.place.line}"
    done = "divided" if found.divides else "multiplied"
    text = f"the values were {done} by {found.number:.4g}{line}: before that they stay within {found.before:.3g}"
    side = "larger" if found.divides else "smaller"
    advice = Alternative(f"a {side} number than {found.number:.4g}{line} (a temperature, a scale)")
    fix = cause.fix
    fix = Fix(advice.text) if fix is None else replace(fix, others=(*fix.others, advice))
    return replace(cause, evidence=(*cause.evidence, Evidence(text)), fix=fix)


def _setting(case: Case) -> ScalingNumber | None:
    """The nearest such number behind the guilty operation; of a derivative, behind the operation that it belongs to."""
    trace, capture = case.trace, case.capture
    if trace is None or capture is None:
        return None
    first = capture.op if case.phase == "forward" else trace.op_of_node(capture.op.sequence)
    for op in [] if first is None else _behind(case, first):
        if (found := _as_setting(op)) is not None:
            return found
    return None


def _behind(case: Case, first: Op) -> Iterator[Op]:
    """The operations that made the inputs of one, nearest first, as far as they let the size of a value through."""
    assert case.trace is not None
    waiting = list(first.sources)
    seen: set[int] = set()
    while waiting and len(seen) < _LONGEST:
        index = waiting.pop(0)
        if index < 0 or index in seen:
            continue
        seen.add(index)
        op = case.trace.ops[index]
        if _plain(op) in _BETWEEN:
            yield op
            waiting += op.sources


def _as_setting(op: Op) -> ScalingNumber | None:
    if _plain(op) not in ("mul", "div") or not op.scalars or op.absmax is None or not op.scalars[-1]:
        return None
    found = ScalingNumber(op, op.scalars[-1], op.absmax)
    return found if found.reached > _TOO_FAR and found.before < _HARMLESS else None


def _plain(op: Op) -> str:
    return op.name.removeprefix("aten.").rstrip("_").removeprefix("_")
