"""NT3xx, decompositions: their derivative divides by differences of singular or eigen-values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case


_TRIANGULAR = ("Qr", "Cholesky")
_REPEATED = 1e-5
"""Two values of a spectrum that are closer than this part of the largest one are equal in float32, after the rounding
of a decomposition."""
_SINGULAR = 1e-6
"""A matrix whose smallest value is below this part of the largest one is singular in float32: its eps is 1.2e-7."""
_NO_DIVISION_BY_ZERO = 1e-300
_SOLVERS = {
    "linalg_inv_ex": 0,
    "linalg_solve_ex": 0,
    "cholesky_solve": 1,
    "linalg_solve_triangular": 0,
    "cholesky_inverse": 0,
}
"""Operations that divide by what is singular, and which of their inputs is the matrix."""


@rule("degenerate_linalg_backward", phase="backward")
def degenerate_linalg_backward(case: Case) -> Claim | None:
    """A matrix with a repeated or zero spectrum was decomposed or inverted."""
    if case.trace is None or not case.decomposes:
        return None
    if any(word in case.node for word in _TRIANGULAR):
        return _singular_factor(case)
    gap = _smallest_gap(case)
    facts = [f"{case.node} divides by differences of singular or eigen-values"]
    if gap is not None:
        facts.append(f"the smallest gap in the spectrum is {gap:.3g} of its largest value")
    return Claim(
        "measured" if gap is not None and gap < _REPEATED else "hint",
        "the gradient of a decomposition with a repeated or zero spectrum is infinite",
        tuple(facts),
        help="add a small diagonal jitter before decomposing (x + 1e-6·diag(1..n)), or use only quantities whose "
        "gradient does not need the vectors (svdvals, slogdet)",
    )


@rule("degenerate_linalg_backward", phase="forward", ops=_SOLVERS)
def singular_matrix(case: Case) -> Claim | None:
    """The forward pass inverted a singular matrix, or solved with it, by a call that raises no error for it."""
    if case.capture is None or len(case.inputs) <= _SOLVERS[case.op]:
        return None
    matrix = case.inputs[_SOLVERS[case.op]]
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or not bool(matrix.isfinite().all()):
        return None
    from torch.linalg import svdvals

    values = svdvals(matrix.double())
    least = _least_share(values)
    if least > _SINGULAR:
        return None
    trial = case.try_replacement("inverse")
    return Claim(
        "tried",
        f"{case.location.op} was given a singular matrix",
        (f"its smallest singular value is {least:.3g} of its largest",),
        trial=trial,
        shows="with 0.001 added to its diagonal the step is finite",
        remedies=(case.remedy("inverse", trial),),
        help="lstsq or pinv, which are defined for such matrices",
    )


def _singular_factor(case: Case) -> Claim:
    """QR and Cholesky: the derivative solves with a triangular factor, whose diagonal holds a 0."""
    least = _least_diagonal(case)
    facts = [f"{case.node} solves with the triangular factor, and so divides by its diagonal"]
    if least is not None:
        facts.append(f"the smallest value on that diagonal is {least:.3g} of the largest")
    return Claim(
        "measured" if least is not None and least < _SINGULAR else "hint",
        "the gradient of a factorisation of a singular matrix is infinite",
        tuple(facts),
        help="add a small jitter before the factorisation (x + 1e-6·I for a square matrix, noise for a tall one); a "
        "column that is 0 or repeats another one is the usual reason",
    )


def _least_diagonal(case: Case) -> float | None:
    """The smallest value on the diagonal of a triangular factor that was computed in the forward pass, relatively."""
    assert case.trace is not None
    found = []
    for witness in case.trace.witnesses.values():
        if not any(name in witness.op.name for name in ("qr", "cholesky")) or witness.op.phase != "forward":
            continue
        factor = next((t for t in reversed(witness.outputs) if t.dim() >= 2 and t.numel()), None)
        if factor is not None:
            diagonal = factor.detach().diagonal(dim1=-2, dim2=-1).abs().double()
            found.append(_least_share(diagonal))
    return min(found) if found else None


def _least_share(values: Tensor) -> float:
    """The smallest value over the largest, in that row of a batch in which this is least."""
    return float((values.amin(-1) / values.amax(-1).clamp(min=_NO_DIVISION_BY_ZERO)).min())


def _smallest_gap(case: Case) -> float | None:
    """The smallest distance in a spectrum, between two values or from 0, relative to its largest value."""
    assert case.trace is not None
    gaps = []
    for witness in case.trace.witnesses.values():
        if "linalg" not in witness.op.name or witness.op.phase != "forward":
            continue
        for output in witness.outputs:
            if output.dim() >= 1 and not output.is_complex() and output.is_floating_point() and _is_spectrum(output):
                values = output.detach().double().sort(dim=-1).values
                scale = float(values.abs().max()) or 1.0
                gaps.append(float(values.diff(dim=-1).abs().min()) / scale)
                gaps.append(float(values.abs().min()) / scale)
    return min(gaps) if gaps else None


def _is_spectrum(tensor: Tensor) -> bool:
    """Singular or eigen-values rather than vectors: sorted along the last dimension."""
    steps = tensor.detach().diff(dim=-1)
    return tensor.shape[-1] > 1 and bool((steps <= 0).all() or (steps >= 0).all())
