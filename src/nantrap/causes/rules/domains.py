"""NT2xx: the logarithm of zero, and an argument for which a function has no value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nantrap.causes.claim import Claim, Has, Remedy, rule
from nantrap.causes.facts import USUAL_EPS, all_finite, ordinary_tensors, share

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


@rule("log_of_zero", ops=_LOGARITHMS)
def log_of_zero(case: Case) -> Claim | None:
    """The logarithm of zero gave -Inf."""
    if case.capture is None or not case.inputs or case.output is None:
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
    trial, remedies = _log_remedies(case)
    exactly = " or ".join(f"{pole:g}" for pole in poles if bool((x == pole).any()))
    return Claim(
        "measured",
        f"the logarithm of zero gave {_signs(case.output)}Inf in {case.place}",
        (f"{case.location.op} was given exactly {exactly} at {share(at_pole)}",),
        trial=trial,
        shows=f"with {trial.change} the step is finite" if trial is not None else "",
        remedies=remedies,
        help="an argument that is kept from 0 where it is made" if len(poles) == 1 else "",
    )


def _signs(output: Tensor) -> str:
    """`-`, `+` or `±`: of the Infs in a result."""
    plus, minus = bool(output.isposinf().any()), bool(output.isneginf().any())
    return "±" if plus and minus else "+" if plus else "-"


@rule("log_of_zero", phase="forward", ops=("linalg_slogdet",))
def determinant_of_zero(case: Case) -> Claim | None:
    """log|det A| of a matrix whose determinant is exactly 0."""
    if case.capture is None or case.output is None or len(case.capture.outputs) < 2:
        return None
    sign, logarithm = case.capture.outputs[:2]
    singular = (sign == 0) & logarithm.isneginf()
    if not bool(singular.any()) or not bool(singular[~logarithm.isfinite()].all()):
        return None
    trial = case.try_replacement("logdet")
    return Claim(
        "measured",
        f"the log-determinant of a singular matrix is -Inf in {case.place}",
        (
            (
                f"{case.location.op}: the determinant is exactly 0 for {int(singular.sum()):,} of {singular.numel():,} "
                f"matri{'x' if singular.numel() == 1 else 'ces'}{all_finite(case.inputs)}"
            ),
        ),
        trial=trial,
        shows="with 0.001 added on the diagonal the step is finite",
        remedies=(case.remedy("logdet", trial, "slogdet"),),
        help="an LU form whose diagonal is an exp",
        note="a row that was set to 0, or two equal rows, are the usual reason",
    )


def _log_remedies(case: Case) -> tuple[Trial | None, tuple[Remedy, ...]]:
    """Stay in log space where the argument was a probability; a floor for everything else. Each is tried."""
    assert case.capture is not None
    family = "domain" if len(_LOGARITHMS[case.op]) > 1 else "log"
    remedies = list(log_space_remedies(case))
    if not any(remedy.trial is not None and remedy.trial.finite for remedy in remedies):
        remedies.append(case.remedy(family, case.try_replacement(family)))
    elif family == "log":
        remedies.append(Remedy("nantrap.ops.safe_log(x)"))
    trials = [remedy.trial for remedy in remedies if remedy.trial is not None]
    return next((trial for trial in trials if trial.finite), trials[-1] if trials else None), tuple(remedies)


def log_space_remedies(case: Case) -> Iterator[Remedy]:
    """The logarithm of a softmax or sigmoid without leaving log space, if that is what the guilty operation takes."""
    from nantrap.causes.changes import LOG_SPACE

    behind = [] if case.capture is None else case.source_ops(case.capture.op, 0)[:4]
    word = next((word for word in ("softmax", "sigmoid") for op in behind if word in op.name), None)
    if word is None:
        return
    trial = case.lab.in_log_space() if case.failure.repeatable else None
    if trial is not None and trial.finite is not None:
        yield Remedy(trial.change, trial)
    else:
        complement = word == "sigmoid" and any(op.name in ("aten.rsub", "aten.sub") for op in behind)
        yield Remedy(LOG_SPACE["1 - sigmoid" if complement else word], trial)
    if word == "sigmoid":
        yield Remedy("binary_cross_entropy_with_logits")


@rule("std_of_one_element", ops=("std", "var", "var_mean", "std_mean"), made="nan")
def std_of_one_element(case: Case) -> Claim | None:
    """An unbiased standard deviation of a single element."""
    if case.output is None:
        return None
    count = case.inputs[0].numel() // max(1, case.output.numel())
    if count != 1:
        return None  # of no element at all: see empty_reduction
    kind = "variance" if case.op.startswith("var") else "deviation"
    trial = case.try_replacement("std")
    remedies = [case.remedy("std", trial)]
    divides = trial is not None and trial.finite is False
    if trial is None or divides:  # by a deviation of 0
        trial = case.try_replacement("std_above_zero")
        remedies = [case.remedy("std_above_zero", trial)]
    return Claim(
        "measured",
        f"an unbiased {'standard ' * (kind == 'deviation')}{kind} over one element is 0/0",
        ("each group holds 1 element: the unbiased estimate divides by 1 - 1 = 0",),
        trial=trial,
        shows=f"with a {kind} that is {f'{USUAL_EPS:g}' if divides else '0'} for one element the step is finite",
        remedies=tuple(remedies),
        help="drop_last=True in the DataLoader, where it is a batch of one sample" if _one_sample(case) else "",
        note=f"a {kind} of 0 (correction=0) gives 0/0 where the step divides by it",
    )


def _one_sample(case: Case) -> bool:
    """Whether the batch holds one sample, as the last one of an epoch may; else the one element is something else."""
    sizes = [tensor.shape[0] for _, tensor in ordinary_tensors(case.failure.batch) if tensor.dim()]
    return bool(sizes) and all(size == 1 for size in sizes)


@rule("domain_error", made="nan")
def domain_error(case: Case) -> Claim | None:
    """A function was given an argument for which it is not defined."""
    if case.capture is None or not case.inputs or case.output is None:
        return None
    in_update = case.phase == "optimizer"
    if case.phase != "forward" and not in_update and not case.in_users_backward:
        return None
    x = case.inputs[-1 if case.op in ("xlogy", "special_xlog1py") else 0]
    outside = _outside_domain(case, x)
    if outside is None or not bool(outside.any()):
        return None
    bad = case.output.isnan()
    if bad.shape == outside.shape and not bool(outside[bad].all()):
        return None
    values = x[outside] if x.shape == outside.shape else x
    place = "the update" if in_update else case.place
    trial = None if in_update else case.try_replacement("domain")
    has: Has = "tried" if not in_update else "hint" if case.failure.optimizer.state else "measured"
    return Claim(
        # the labels or the data may have moved the argument there, and only the remedy decides; no update reads them
        has,
        f"{case.op} was given {_shown(values.flatten()[0])}, for which it is not defined, in {place}",
        (
            (
                f"{case.location.op} was given values outside its domain at {share(outside)}, from "
                f"{_shown(values.min())} to {_shown(values.max())}{all_finite(case.inputs)}"
            ),
        ),
        trial=trial,
        shows="with the argument kept inside the domain the step is finite",
        remedies=() if in_update else (case.remedy("domain", trial),),
        help="compute the argument in a form that cannot leave the domain (var instead of E[x²] - E[x]²)",
    )


def _shown(value: Tensor) -> str:
    """A number with four digits, or with nine next to ±1, where four would move it into the domain."""
    number = float(value.double())
    return f"{number:.9g}" if 0 < abs(abs(number) - 1) < 1e-3 else f"{number:.4g}"


@rule("domain_error", ops=("native_batch_norm", "_native_batch_norm_legit_no_training"), made="nan")
def negative_variance(case: Case) -> Claim | None:
    """A normalisation takes the root of a running variance that is negative."""
    if case.capture is None or len(case.inputs) < 3 or case.inputs[-1].dim() != 1:
        return None
    variance, eps = case.inputs[-1], case.capture.op.scalars[-1] if case.capture.op.scalars else 0.0
    negative = variance + eps < 0
    if not bool(negative.any()):
        return None
    return Claim(
        "measured",
        f"the root of a negative running variance was taken in {case.place}",
        (f"the running variance and eps are below 0 at {share(negative)}, down to {_shown(variance.min())}",),
        help="look what wrote the running variance (a checkpoint, an average, a difference of weights); start from one "
        "that is not negative, or let training batches estimate it again",
    )


def _outside_domain(case: Case, x: Tensor) -> Tensor | None:
    """The places at which an argument lies outside the domain of the guilty function."""
    assert case.capture is not None
    if case.op in ("sqrt", "rsqrt", "log", "log2", "log10", "special_entr", "xlogy"):
        return x < 0
    if case.op in ("log1p", "special_xlog1py"):
        return x < -1
    if case.op in ("acos", "asin", "erfinv", "atanh"):
        return x.abs() > 1
    if case.op == "acosh":
        return x < 1
    if case.op == "logit":
        return (x < 0) | (x > 1)
    if case.op == "pow" and len(case.capture.args) > 1:
        exponent = case.capture.args[1]
        if isinstance(exponent, (int, float)):
            return x < 0 if exponent != int(exponent) else None
        return (x < 0).expand_as(case.output) if case.output is not None else None
    return None
