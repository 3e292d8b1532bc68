"""From what a tensor holds to what is wrong with it.

The rules must not report anything on healthy checkpoints. Deliberate or ordinary values are no error: `-inf` in a
causal mask, `inf` in the `best_score` of an early-stopping callback, zeros in Adam's moments, ones in a fresh
LayerNorm, float32 norms next to bfloat16 weights, float8 weights at their limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from nantrap.checkpoints.audit.facts import role_of_path
from nantrap.checkpoints.audit.scan import TensorScan
from nantrap.checkpoints.audit.verdict import CheckpointProblem, Role, checkpoint_problem
from nantrap.incident.wording import escaped
from nantrap.problems import Severity
from nantrap.thresholds import is_absurd_weight

SQUARES: Final = frozenset(
    ("exp_avg_sq", "max_exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col", "square_avg", "sum", "running_var")
)

_STATE: Final[frozenset[Role]] = frozenset(("model", "optimizer", "ema", "scaler"))


def judge_tensor(scan: TensorScan, role: Role) -> list[CheckpointProblem]:
    """What is wrong with one tensor."""
    if scan.stats is not None:
        problem = _nonfinite(scan, role)
        return [problem] if problem else []
    tensor = scan.tensor
    last = tensor.name.rpartition(".")[2]
    problems = []
    absmax = max(abs(scan.low), abs(scan.high))
    if is_absurd_weight(absmax, tensor.dtype.name) and not _is_finite_mask(scan):
        severity: Severity = "error" if role in ("model", "ema") else "warning"
        text = f"absmax {absmax:.3g} in {tensor.dtype.name}"
        problems.append(_problem("NT903", text, scan, role, severity))
    if last in SQUARES and (role == "optimizer" or last == "running_var") and scan.low < 0:
        text = f"least value {scan.low:.3g}, but {last} is a mean of squares"
        problems.append(_problem("NT904", text, scan, role, "error"))
    if scan.is_constant and _should_vary(scan, role, last):
        text = "all values are 0" if scan.low == 0 else f"all values are {scan.low:.4g}"
        problems.append(_problem("NT905", text, scan, role, "warning"))
    return problems


def judge_dtypes(dtypes: Mapping[str, int]) -> list[CheckpointProblem]:
    """The mix of dtypes among the weights. float32 together with one half precision is usual."""
    halves = {"float16", "bfloat16"} & dtypes.keys()
    odd = None
    if len(halves) == 2:
        odd = "float16 and bfloat16"
    elif "float64" in dtypes and dtypes.keys() & {"float32", "float16", "bfloat16"}:
        odd = "float64 together with smaller floats"
    if odd is None:
        return []
    counts = ", ".join(f"{count:,} × {name}" for name, count in sorted(dtypes.items(), key=lambda p: -p[1]))
    return [checkpoint_problem("NT906", f"the weights mix {odd}: {counts}", severity="warning", role="model")]


def judge_numbers(numbers: Iterable[tuple[str, Role, float]]) -> list[CheckpointProblem]:
    """Learning rates and loss scales that are plain numbers next to the tensors."""
    problems = []
    for name, role, value in numbers:
        if math.isnan(value):
            problems.append(checkpoint_problem("NT901", f"{name} is NaN", tensor=name, role=role, nan=1))
        elif math.isinf(value):
            up = value > 0
            text = f"{name} is {'+' if up else '-'}Inf"
            problems.append(
                checkpoint_problem("NT902", text, tensor=name, role=role, posinf=int(up), neginf=int(not up))
            )
        elif role == "scaler" and value < 2.0**-14:
            # GradScaler halves its scale at each overflow: a persistent NaN lowers it towards 0.
            text = f"the loss scale has collapsed to {value:.3g}: every step before the save overflowed"
            problems.append(checkpoint_problem("NT903", text, severity="warning", tensor=name, role=role))
    return problems


_SCORES: Final = re.compile(
    r".*(loss|metric|score|best|acc|history|log|eval|val_|valid|perplexity|ppl|fid|bleu|time|patience|monitor|running|"
    r"limit|bound|min|max|clip|threshold).*",
    re.IGNORECASE,
)
"""Keys under which a number is a measurement or a limit: it may be anything, and training does not start from it."""


def judge_plain_numbers(numbers: Iterable[tuple[tuple[str, ...], float]], fallback: Role) -> list[CheckpointProblem]:
    """Python and numpy numbers, in lists or alone, that are not finite.

    NaN in the state that training continues from is an error, elsewhere a warning. Inf alone is often intended: the
    best score so far, no limit.
    """
    problems: dict[tuple[str, str], CheckpointProblem] = {}
    for path, value in numbers:
        role = role_of_path(path, default=fallback)
        keys = [key for key in path if not key.isdecimal()]
        last = keys[-1] if keys else ""
        of_state = role in (*_STATE, "scheduler") and not any(_SCORES.fullmatch(key) for key in keys[-2:])
        in_list = bool(path) and path[-1].isdecimal()
        if math.isinf(value) and not (of_state and in_list):
            continue
        # a list is one finding, named by its first bad element
        where = ".".join(path[:-1] if in_list else path)
        kind = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
        known = problems.get((where, kind))
        if known is not None:
            field = {"NaN": "nan", "+Inf": "posinf", "-Inf": "neginf"}[kind]
            problems[where, kind] = replace(known, **{field: getattr(known, field) + 1})
            continue
        name = escaped(".".join(path)) or "the saved number"
        severity: Severity = "error" if of_state and (in_list or last not in ("", "epoch")) else "warning"
        problems[where, kind] = checkpoint_problem(
            "NT901" if kind == "NaN" else "NT902",
            f"{name} is {kind}",
            severity=severity,
            tensor=name,
            role=role,
            nan=int(kind == "NaN"),
            posinf=int(kind == "+Inf"),
            neginf=int(kind == "-Inf"),
        )
    return list(problems.values())


def _nonfinite(scan: TensorScan, role: Role) -> CheckpointProblem | None:
    """The problem of a tensor that is not finite; milder for masks and plain numbers, none for a score that begins at
    Inf.
    """
    stats = scan.stats
    assert stats is not None
    severity: Severity = "error"
    text = stats.describe()
    if role not in _STATE and not scan.tensor.shape:
        if stats.nan == 0:
            return None  # the best score so far begins at Inf
        severity = "warning"
    elif _is_mask(scan):
        severity = "warning"
        text += "; it looks like a mask: all other values are the same"
    code = "NT901" if stats.nan else "NT902"
    return _problem(code, text, scan, role, severity)


def _is_mask(scan: TensorScan) -> bool:
    """`-inf` and otherwise one single value, in two dimensions or more: a registered attention mask."""
    stats = scan.stats
    assert stats is not None
    if stats.nan or stats.posinf or len(scan.tensor.shape) < 2:
        return False
    return scan.high in (0.0, 1.0) and scan.low == scan.high


def _is_finite_mask(scan: TensorScan) -> bool:
    """Whether a tensor is a mask that holds the dtype's least value in place of `-inf`."""
    return scan.low == -scan.tensor.dtype.largest and scan.high in (0.0, scan.low)


def _should_vary(scan: TensorScan, role: Role, last: str) -> bool:
    tensor = scan.tensor
    if role not in ("model", "ema"):
        return False
    if last == "running_var":
        return scan.low == 0 and tensor.numel > 1
    return last == "weight" and len(tensor.shape) >= 2 and tensor.numel >= 64


def _problem(code: str, text: str, scan: TensorScan, role: Role, severity: Severity) -> CheckpointProblem:
    """A problem of one tensor, with its counts, its shape and where its first bad value is."""
    stats = scan.stats
    return checkpoint_problem(
        code,
        f"{escaped(scan.tensor.name) or 'the saved tensor'}: {text}",
        severity=severity,
        tensor=scan.tensor.name,
        role=role,
        nan=stats.nan if stats else 0,
        posinf=stats.posinf if stats else 0,
        neginf=stats.neginf if stats else 0,
        first_index=scan.first_index,
        shape=scan.tensor.shape,
        dtype=scan.tensor.dtype.name,
    )
