"""NT2xx: the logarithm of zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nantrap.causes.claim import Claim
from nantrap.causes.facts import all_finite, share
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Trial

_LOGARITHMS: Final[dict[str, tuple[float, ...]]] = {
    "log": (0.0,), "log2": (0.0,), "log10": (0.0,), "log1p": (-1.0,), "special_entr": (0.0,), "xlogy": (0.0,),
    "special_xlog1py": (-1.0,), "logit": (0.0, 1.0), "atanh": (-1.0, 1.0),
}  # fmt: skip
"""Where each is infinite. logit(p) is log(p / (1 - p)), and atanh(x) half of log((1 + x) / (1 - x))."""
_OF_THE_SECOND: Final = ("xlogy", "special_xlog1py")
"""x · log(y): the logarithm is taken of the second argument."""


@rule("log_of_zero")
def log_of_zero(case: Case) -> Claim | None:
    """The logarithm of zero gave -Inf."""
    if case.op == "linalg_slogdet" and case.phase == "forward":
        return _determinant_of_zero(case)
    if case.capture is None or case.op not in _LOGARITHMS or not case.inputs or case.output is None:
        return None
    if case.phase != "forward" and not case.in_users_backward:
        return None
    if case.half and not case.fails_in_float32:
        return None  # a question of precision: see eps_underflow_half
    poles = _LOGARITHMS[case.op]
    x = case.inputs[-1 if case.op in _OF_THE_SECOND else 0]
    at_pole = (x == poles[0]) | (x == poles[-1])
    bad = ~case.output.isfinite()
    if not bool(at_pole.any()) or (bad.shape == at_pole.shape and not bool(at_pole[bad].all())):
        return None  # below the pole it is a domain error
    trial, advice = _log_remedy(case)
    exactly = " or ".join(f"{pole:g}" for pole in poles if bool((x == pole).any()))
    return Claim(
        "measured",
        f"the logarithm of zero gave {_signs(case.output)}Inf in {case.place}",
        (f"{case.location.op} was given exactly {exactly} at {share(at_pole)}",),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        help=advice,
        patch=trial is not None and trial.name == "replaced:log",
    )


def _signs(output: Tensor) -> str:
    """`-`, `+` or `±`: of the Infs in a result."""
    plus, minus = bool(output.isposinf().any()), bool(output.isneginf().any())
    return "±" if plus and minus else "+" if plus else "-"


def _determinant_of_zero(case: Case) -> Claim | None:
    """log|det A| of a matrix whose determinant is exactly 0."""
    if case.capture is None or case.output is None or len(case.capture.outputs) < 2:
        return None
    sign, logarithm = case.capture.outputs[:2]
    singular = (sign == 0) & logarithm.isneginf()
    if not bool(singular.any()) or not bool(singular[~logarithm.isfinite()].all()):
        return None
    return Claim(
        "measured",
        f"the log-determinant of a singular matrix is -Inf in {case.place}",
        (
            (
                f"{case.location.op}: the determinant is exactly 0 for {int(singular.sum()):,} of {singular.numel():,} "
                f"matri{'x' if singular.numel() == 1 else 'ces'}{all_finite(case.inputs)}"
            ),
        ),
        trial=case.try_replacement("logdet", "0.001 added on the diagonal"),
        shows="with 0.001 added on the diagonal the step is finite",
        help="keep the matrix invertible: add a small multiple of the identity, or use an LU form whose diagonal is an "
        "exp; a row that was set to 0, or two equal rows, are the usual reason",
    )


def _log_remedy(case: Case) -> tuple[Trial | None, str]:
    """Stay in log space where the argument was a probability; a floor for everything else. Each is tried."""
    assert case.capture is not None
    if len(ends := _LOGARITHMS[case.op]) > 1:
        low, high = ends
        trial = case.try_replacement("domain", f"an argument between {low:g} and {high:g}")
        return trial, f"keep the argument between {low:g} and {high:g}: x.clamp({low:g} + 1e-6, {high:g} - 1e-6)"
    behind = " ".join(op.name for op in case.source_ops(case.capture.op, 0)[:4])
    together = {
        "softmax": ("log_softmax(x) instead of log(softmax(x))", "log_softmax(x) instead of log(softmax(x))"),
        "sigmoid": (
            "logsigmoid(x) instead of log(sigmoid(x))",
            "logsigmoid(x), or binary_cross_entropy_with_logits, instead of the logarithm of a sigmoid",
        ),
    }
    found = next((texts for word, texts in together.items() if word in behind), None)
    if found is not None:
        trial = case.lab.in_log_space(found[0]) if case.failure.repeatable else None
        if trial is None or trial.finite:
            return trial, f"{found[1]}, which stays finite; or nantrap.ops.safe_log(x)"
    floored = case.try_replacement("log", "nantrap.ops.safe_log")
    if floored is not None and floored.finite is False:
        return (
            floored,
            "keep the argument from 0 where it is made; a floor under the logarithm alone does not help",
        )
    advice = "nantrap.ops.safe_log(x), or an argument that is kept from 0 where it is made"
    return floored, advice if found is None else f"{found[1]}; or nantrap.ops.safe_log(x)"
