"""NT7xx: ranks, hardware, compilers and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.explain.facts import absmax, limit
from nantrap.explain.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from nantrap.explain.case import Case


@rule("hardware_fault")
def hardware_fault(case: Case) -> Cause | None:
    """The exact replay does not reproduce the failure."""
    external = case.external
    if external is not None and external.kind in ("parameter", "buffer") and case.state_untouched:
        return Cause(
            "hardware_fault",
            proven=True,
            confidence=0.96,
            summary=f"{external.name} changed though nothing wrote it",
            evidence=(
                Evidence(f"{external.name} was finite after the last step, and no write to it was counted since"),
            ),
            fix=Fix(
                text="go back to the last good checkpoint and test the memory of this machine; replace the device if it recurs"
            ),
        )
    replay = case.location.replay
    if replay is None or replay.failed or replay.error is not None or not case.failed.repeatable:
        return None
    trial = case.lab.again()
    if not trial.finite or trial.loss != replay.loss:
        return None  # two replays disagree: the function itself is random, which is no proof of anything
    return Cause(
        "hardware_fault",
        proven=True,
        confidence=0.9,
        summary="the failure is transient: the same step with the same inputs is finite",
        evidence=(
            Evidence("two exact replays are finite and agree bit for bit", kind="trial", trial=trial.number),
            Evidence("parameters, buffers, batch and random streams were those of the failed step"),
        ),
        fix=Fix(
            text="nothing in the code needs to change; if it happens again on this device, test its memory or replace it"
        ),
    )


@rule("backend_or_kernel_bug")
def backend_or_kernel_bug(case: Case) -> Cause | None:
    """One kernel is wrong on inputs for which the reference is right."""
    if case.capture is None or case.output is None or case.phase not in ("forward", "backward"):
        return None
    from nantrap.explain.reference import recomputed

    name = case.location.op or ""
    top = limit(case.output)
    if not name.startswith("aten."):
        largest = max([absmax(t) for t in case.inputs], default=0.0)
        return Cause(
            "backend_or_kernel_bug",
            proven=False,
            confidence=0.85,
            summary=f"the kernel {name} made non-finite values out of finite ones",
            evidence=(Evidence(f"{name} is not an operation of PyTorch; its inputs are finite, absmax {largest:.4g}"),),
            fix=Fix(text=f"compare {name} with a plain PyTorch version on these inputs; use that one meanwhile"),
        )
    if case.half:
        return None
    reference = recomputed(case, "float64")
    if reference is None or not bool(reference.isfinite().all()) or absmax(reference) >= top:
        return None
    return Cause(
        "backend_or_kernel_bug",
        proven=True,
        confidence=0.88,
        summary=f"{name} is wrong on these inputs: in float64 it is finite and fits into {case.dtype}",
        evidence=(
            Evidence(f"the same operation on its recorded inputs in float64 is finite, absmax {absmax(reference):.4g}"),
            Evidence(f"that fits into {case.dtype} (limit {top:.4g})"),
        ),
        fix=Fix(text="use another backend or an equivalent form for this operation, and report it with these inputs"),
    )


@rule("compiler_bug")
def compiler_bug(case: Case) -> Cause | None:
    """The compiled model differs from the eager one."""
    return None


@rule("rank_divergence")
def rank_divergence(case: Case) -> Cause | None:
    """The ranks hold or decided different things."""
    return None
