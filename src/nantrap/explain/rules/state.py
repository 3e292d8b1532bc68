"""NT6xx: what was bad before the step: parameters, buffers, optimizer state, averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.explain.facts import describe, share
from nantrap.explain.proofs import add_proof, fix_for
from nantrap.explain.registry import rule
from nantrap.incident import Cause, Evidence, Fix

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.explain.case import Case


@rule("uninitialised_memory")
def uninitialised_memory(case: Case) -> Cause | None:
    """A parameter or buffer was never initialised."""
    capture = case.capture
    if (
        capture is None
        and case.trace is not None
        and (case.location.op or "").startswith(("aten.empty", "aten.new_empty"))
    ):
        return Cause(
            "uninitialised_memory",
            proven=True,
            confidence=0.95,
            summary=f"{case.location.op} was read before anything was written to it",
            evidence=(Evidence(f"the result of {case.location.op} was read while it still held what was in memory"),),
            fix=Fix(text="torch.zeros instead of torch.empty, or fill it before it is read"),
        )
    external = case.external
    if external is None or external.kind not in ("parameter", "buffer") or not case.first_step:
        return None
    if not _never_written(external.tensor):
        return None
    return Cause(
        "uninitialised_memory",
        proven=True,
        confidence=0.96,
        summary=f"{external.name} was never initialised",
        evidence=(
            Evidence(f"{external.name} {describe(external.tensor)} before the first step"),
            Evidence(
                "nothing was ever written to it since it was allocated (torch.empty, or a key missing from the checkpoint)"
            ),
        ),
        fix=Fix(
            text=f"initialise it (nn.init.xavier_uniform_, torch.zeros), or check the missing keys of load_state_dict for {external.name}"
        ),
    )


@rule("corrupt_checkpoint")
def corrupt_checkpoint(case: Case) -> Cause | None:
    """The weights were non-finite when they were loaded."""
    external = case.external
    if external is None or external.kind not in ("parameter", "buffer") or case.state_untouched:
        return None
    if not case.first_step and external.kind == "buffer":
        return None
    if case.first_step and _never_written(external.tensor):
        return None
    bad = ~external.tensor.detach().isfinite()
    when = "before the first step" if case.first_step else "since somebody wrote it between two steps"
    return Cause(
        "corrupt_checkpoint",
        proven=case.first_step,
        confidence=0.93 if case.first_step else 0.6,
        summary=f"{external.name} was non-finite when it was loaded",
        evidence=(
            Evidence(f"{external.name} {describe(external.tensor)} {when}"),
            Evidence(
                f"it was written after it was made, and only {share(bad)} are bad: a loaded value, not empty memory"
            ),
        ),
        fix=Fix(text="nantrap audit on the checkpoint folder names the newest healthy one; start from that"),
    )


@rule("corrupt_optimizer_state")
def corrupt_optimizer_state(case: Case) -> Cause | None:
    """The optimizer state was bad before the step."""
    if case.phase not in ("optimizer", "state"):
        return None
    external = case.external
    negative = (
        case.phase == "optimizer" and case.op in ("sqrt", "rsqrt") and case.inputs and bool((case.inputs[0] < 0).any())
    )
    if not negative and (external is None or external.kind != "optimizer_state"):
        return None
    trial = case.lab.fresh_optimizer_state()
    if negative:
        text = f"the second moment is negative at {share(case.inputs[0] < 0)}: the square root of that is NaN"
    else:
        assert external is not None
        text = f"{external.name} {describe(external.tensor)} before the step"
    evidence = [Evidence(text), Evidence("weights and gradients are finite")]
    proven = add_proof(evidence, trial, "with a fresh optimizer state the same update is finite")
    return Cause(
        "corrupt_optimizer_state",
        proven=proven,
        confidence=0.97 if proven else 0.8,
        summary="the optimizer state was bad before the step",
        evidence=tuple(evidence),
        fix=fix_for(
            case,
            "restore the optimizer state from an older checkpoint, or start it afresh (optimizer.state.clear())",
            trial,
        ),
    )


@rule("bn_buffers_poisoned")
def bn_buffers_poisoned(case: Case) -> Cause | None:
    """A buffer updated in the forward pass holds non-finite values."""
    external = case.external
    if external is not None and external.kind == "buffer" and not case.first_step and not case.state_untouched:
        name, text = (
            external.name,
            f"{external.name} {describe(external.tensor)} before the step; the parameters are finite",
        )
    elif case.failed.bad_buffers and _only_buffers(case):
        name = case.failed.bad_buffers[0]
        text = f"the forward pass made {name} non-finite; loss and gradients are finite, so no check of them sees it"
    else:
        return None
    return Cause(
        "bn_buffers_poisoned",
        proven=True,
        confidence=0.965,
        summary=f"{name}, updated in the forward pass, holds non-finite values",
        evidence=(Evidence(text), Evidence("a skipped optimizer step does not undo what a forward pass wrote")),
        fix=Fix(
            text="the guard put the buffer back; reset it (module.reset_running_stats()) where it is already bad, and keep it in float32"
        ),
    )


@rule("ema_poisoned")
def ema_poisoned(case: Case) -> Cause | None:
    """The averaged weights hold non-finite values."""
    optimized = {id(p) for group in case.failed.optimizer.param_groups for p in group["params"]}
    trained = {name for name, p in case.failed.parameters.items() if id(p) in optimized}
    averaged = [f for f in case.incident.findings if f.kind == "ema"]
    if case.phase == "optimizer":  # written by a hook of the update, though no rate ever moves it
        bad = [f for f in case.incident.findings if f.kind in ("parameter", "buffer")]
        if bad and all(f.name not in trained for f in bad):
            averaged += bad
    if not averaged:
        return None
    return Cause(
        "ema_poisoned",
        proven=True,
        confidence=0.97,
        summary=f"the averaged weights are non-finite: {averaged[0].name}",
        evidence=(
            Evidence(f"{averaged[0].name}: {averaged[0].stats.describe() if averaged[0].stats else averaged[0].note}"),
            Evidence("the model itself is finite"),
        ),
        fix=Fix(
            text="keep the average in float32, update it only after applied steps (Guard(ema=...)), and guard its divisor"
        ),
    )


def _never_written(tensor: Tensor) -> bool:
    """Whether (part of) the tensor still holds what its allocation gave.

    Nothing was written in place, or everything is bad, or whole rows or columns are: a part that nobody filled. Bit rot
    and bad shards look different: single values, scattered.
    """
    bad = ~tensor.detach().isfinite()
    if tensor._version == 0 or bool(bad.all()):
        return True
    if float(bad.float().mean()) < 0.25:
        return False
    return any(
        bad.shape[dim] > 1 and bool((bad.all(dim=dim) == bad.any(dim=dim)).all())
        for dim in range(bad.dim())
        if bad.dim() > 1
    )


def _only_buffers(case: Case) -> bool:
    loss, norm = case.incident.loss, case.incident.grad_norm
    return (
        loss is not None
        and loss == loss
        and abs(loss) != float("inf")
        and norm is not None
        and norm == norm
        and abs(norm) != float("inf")
    )
