"""NT7xx: ranks, hardware, compilers and kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import absmax, all_finite, limit, recomputed, rows_in_words
from nantrap.thresholds import is_large

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.causes.references import Compared


@rule("hardware_fault")
def hardware_fault(case: Case) -> Claim | None:
    """The same operation gave different results on the same operands."""
    external = case.external
    if external is not None and external.kind in ("parameter", "buffer") and case.run.untouched:
        if case.lab.writes_again(external.name, external.tensor):
            return None  # the program itself writes those bits
        return _odd_bits(external.name, external.tensor)
    if case.capture is not None and not case.half and (case.location.op or "").startswith("aten."):
        return _other_bits(case)
    return _did_not_repeat(case)


@rule("backend_or_kernel_bug")
def backend_or_kernel_bug(case: Case) -> Claim | None:
    """One kernel is wrong on inputs for which the reference is right."""
    if case.capture is None or case.output is None or case.phase not in ("forward", "backward"):
        return None
    name = case.location.op or ""
    top = limit(case.output)
    if (wrong := case.wrong_kernel) is not None:
        return _wrong_kernel(case, wrong)
    if own := next((each for each in case.kernels if each.both_bad and each.name == name), None):
        case.notes.append(
            f"{name} is not at fault: {own.form} gives non-finite values at the same places on the same operands"
        )
        return None
    if not name.startswith("aten."):
        largest = max([absmax(t) for t in case.inputs], default=0.0)
        return Claim(
            "hint",
            f"the kernel {name} made non-finite values",
            (f"{name} is not an operation of PyTorch; its inputs reach {largest:.4g}{all_finite(case.inputs)}",),
            help=f"compare {name} with a plain PyTorch version on these inputs; nantrap does that if you decorate the "
            f"plain version with @nantrap.ops.reference({name.replace('.', '::', 1)!r})",
        )
    if case.half or any(is_large(absmax(t)) for t in case.inputs):
        return None  # a sum or a square inside the kernel may really overflow
    if (constant := next((each for each in case.capture.op.scalars if top < abs(each) < math.inf), None)) is not None:
        case.notes.append(f"the constant {constant:g} is beyond {top:.3g}, where {case.dtype} ends: it is Inf there")
        return None
    repeated = recomputed(case, case.dtype)
    if repeated is None or bool(repeated.isfinite().all()):
        return None  # not the kernel: the same call on the same inputs is finite now
    reference = recomputed(case, "float64")
    if reference is None or not bool(reference.isfinite().all()) or absmax(reference) >= top:
        return None
    return Claim(
        "measured",
        f"{name} is wrong on these inputs: in float64 it is finite and fits into {case.dtype}",
        (
            f"the same operation on its recorded inputs in float64 is finite, absmax {absmax(reference):.4g}",
            f"that fits into {case.dtype} (limit {top:.4g})",
        ),
        help="use another backend or an equivalent form for this operation, and report it with these inputs",
    )


def _wrong_kernel(case: Case, wrong: Compared) -> Claim:
    """An operator whose plain form is finite, or gives other values, on the operands of the failed step."""
    assert wrong.differs is not None
    bad = wrong.differs & ~wrong.output.isfinite()
    what = "is not finite" if bool(bad.any()) else "gives other values"
    places = bad if bool(bad.any()) else wrong.differs
    facts = [f"{wrong.name} {what} {rows_in_words(places, whole=False)}; {wrong.form} is finite there"]
    if not bool(bad.any()):
        away = float((wrong.output - wrong.plain)[wrong.differs].abs().max())
        facts = [f"{wrong.name} differs from {wrong.form} by up to {away:.4g} {rows_in_words(places, whole=False)}"]
    trial = case.lab.in_plain_forms()
    finite = bool(trial.finite)
    return Claim(
        "tried" if finite else "hint",
        f"{wrong.name} {what} where {wrong.form} is right"
        if bool(bad.any())
        else f"{wrong.name} gives other values than {wrong.form}",
        tuple(facts),
        trial=trial,
        shows="with the plain form in its place the step is finite",
        remedies=(Remedy(f"{wrong.form} instead of {wrong.name}", trial),) if finite else (),
        help=f"correct {wrong.name} for the rows that are named; use the plain form meanwhile",
        compares=True,
    )


@rule("compiler_bug")
def compiler_bug(case: Case) -> Claim | None:
    """The compiled model differs from the eager one."""
    from nantrap.locate.replay.replay import compiled_code_ran

    replay = case.location.replay
    if not compiled_code_ran() or replay is None or replay.failed or not case.failure.repeatable or replay.loss is None:
        return None
    if case.lab.control("step"):
        return None  # the compiled step does not fail again as it did: nothing shows a difference between the two
    again = case.lab.again()
    if again.finite is not False:
        return None
    return Claim(
        "measured",
        "the compiled model gives non-finite values where the eager one is finite",
        (
            f"run eagerly on the same inputs, the step is finite (loss {replay.loss:.6g})",
            f"run compiled, it fails again, twice (trial {again.number} and its control)",
        ),
        help="train eagerly, or exclude the part with torch.compiler.disable, until the compiler is fixed; "
        'backend="aot_eager" shows whether the code generator is the cause',
        compares=True,
    )


@rule("rank_divergence")
def rank_divergence(case: Case) -> Claim | None:
    """The ranks hold or decided different things."""
    if len(set(case.run.checksums)) < 2:
        return None
    shown = ", ".join(f"rank {rank}: {value:.9g}" for rank, value in enumerate(case.run.checksums[:4]))
    return Claim(
        "measured",
        "the ranks hold different parameters, though gradients are averaged between them",
        (f"checksums of the parameters: {shown}",),
        help="load before wrapping in DistributedDataParallel (it broadcasts rank 0's weights), call the wrapper "
        "and not model.module (whose gradients are not averaged), and let no rank skip a step alone; to repair it "
        "now, broadcast the parameters and the optimizer state from rank 0",
    )


_RANDOM = ("dropout", "rand", "bernoulli", "normal", "uniform", "multinomial", "exponential", "poisson", "rrelu")


def _odd_bits(name: str, tensor: Tensor) -> Claim | None:
    """A NaN that no arithmetic makes: its bits carry a payload, as if single bits of a number had flipped.

    An uncounted write alone is no evidence: `tensor.data`, NumPy and kernels write without counting. It stays a guess.
    """
    from nantrap.finite import has_nan_payload, plain_values

    values = plain_values(tensor)
    if values is None:
        return None
    bad = values[~values.isfinite()]
    if bad.numel() != 1 or not has_nan_payload(bad):
        return None
    return Claim(
        "hint",
        f"one value of {name} has the bits of a damaged number",
        (
            (
                f"{name} was finite after the last step; one value is NaN now, and its bits are not those that "
                f"arithmetic "
                "writes for NaN"
            ),
            "no write to it was counted; NumPy, tensor.data or a kernel may have written it",
        ),
        help="resume from the last good checkpoint; if it happens again at other places of the same device, test its "
        "memory",
    )


def _other_bits(case: Case) -> Claim | None:
    """The same operation on the same recorded operands gives another result than it gave in the step."""
    if case.capture is None or case.capture.assumed or any(word in case.op for word in _RANDOM):
        return None
    first, second = recomputed(case, case.dtype), recomputed(case, case.dtype)
    if first is None or second is None or not bool(first.isfinite().all()) or not bool((first == second).all()):
        return None
    recorded = case.trace is not None and case.capture.op.index in case.trace.captures and case.has_all_operands
    return Claim(
        "measured" if recorded and case.failure.repeatable else "hint",
        f"{case.location.op} is finite on the same inputs on which it failed",
        ("run twice more on its recorded operands, in the same precision, it is finite and agrees with itself",),
        help="nothing in the code needs to change; if it happens again on this device, test its memory",
    )


def _did_not_repeat(case: Case) -> Claim | None:
    """The step is finite in two exact replays that agree. Something was different, and it is not known what."""
    replay = case.location.replay
    if replay is None or replay.failed or replay.error is not None or not case.failure.repeatable:
        return None
    from nantrap.locate.replay.program import cannot_rewind

    if cannot_rewind(case.failure.forward, case.failure.batch):
        return None
    trial = case.lab.again()
    if not trial.finite or trial.loss != replay.loss:
        return None  # two replays disagree: the function itself is random
    return Claim(
        "hint",
        "the failure did not repeat: run again twice, the same step is finite",
        (
            (
                "two replays are finite and give the same loss; weights, buffers, batch, random streams and the "
                "program's own "
                "generators and attributes were restored before each"
            ),
            "either something the step reads was not restored, or a value changed in memory once",
        ),
        help="if it happens again at random places, test the memory of this machine; guard.attempt with everything the "
        "loss reads inside the batch makes the replay exact",
    )
