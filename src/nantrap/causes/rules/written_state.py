"""NT6xx: what the program wrote while it ran: buffers updated in forward, averages, its own writes into weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nantrap.causes.claim import Claim, Has, rule
from nantrap.causes.facts import describe, lone_giant, made_so
from nantrap.causes.rules.batch import largest_input
from nantrap.causes.rules.learning_rate import updates_explain

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Finding
    from nantrap.locate.trace import External, Op

_RUNNING = ("running_mean", "running_var")
_AT_START = "check the expression that gives the initial value: the logarithm of 0, a division by 0"


@rule("bn_buffers_poisoned")
def bn_buffers_poisoned(case: Case) -> Claim | None:
    """A buffer updated in the forward pass holds non-finite values."""
    external = case.external
    has: Has
    if (
        external is not None
        and external.kind == "buffer"
        and not case.first_step
        and case.is_updated_in_forward(external)
    ):
        has, name = "hint", external.name  # by a pass that was not guarded, or by code between two steps
        text = f"{external.name} {describe(external.tensor)} before the step"
        done = "the buffer was bad before this step; reset it (module.reset_running_stats()), and keep it in float32"
    elif (
        (bad := _bad_buffers(case))
        and _only_buffers(case)
        and (how := written_as(case, bad[0])) in ("average", "unseen")
    ):
        if updates_explain(case) or _written_beside_the_update(case):
            return None  # of weights that were thrown away it only shows first; a hook of the update is no forward pass
        # an input whose square does not fit is the reason; what was not seen may be no average
        unsure = largest_input(case) is not None or (how == "unseen" and not bad[0].endswith(_RUNNING))
        has, name = "hint" if unsure else "measured", bad[0]
        text = f"the forward pass made {name} non-finite; loss and gradients are finite, so no check of them finds it"
        done = "keep the buffer in float32, and reset it (module.reset_running_stats()) where it is already bad"
    else:
        return None
    return Claim(
        has,
        f"{name}, updated in the forward pass, holds non-finite values",
        (text, "a skipped optimizer step does not undo what a forward pass wrote"),
        help=done,
    )


@rule("ema_poisoned")
def ema_poisoned(case: Case) -> Claim | None:
    """The averaged weights hold non-finite values."""
    trained = _trained(case)
    averaged = [f for f in case.incident.findings if f.kind == "ema"]
    beside = _written_beside_the_update(case)
    copies = [f for f in beside if _original_of(case, f.name, trained)]
    averaged += [f for f in copies if _is_computed_from(case, f.name, trained)]
    known = bool(averaged)
    averaged = averaged or copies
    if not averaged:
        return _average_beyond_its_range(case, trained) or _average_written_unseen(case, trained)
    original = _original_of(case, averaged[0].name, trained)
    return Claim(
        "measured" if known else "hint",
        f"the averaged weights are non-finite: {averaged[0].name}"
        if known
        else f"{averaged[0].name}, shaped and named like {original}, became non-finite in the update",
        (
            f"{averaged[0].name}: {averaged[0].stats.describe() if averaged[0].stats else averaged[0].note}",
            *(("what the optimizer trains is finite",) if _trained_is_finite(case, trained) else ()),
        ),
        help="keep the average in float32, update it only after applied steps (Guard(ema=...)), and guard its divisor",
    )


def _average_beyond_its_range(case: Case, trained: set[str]) -> Claim | None:
    """An average in a float16 buffer of the model: the step wrote a weight into it that float16 cannot hold."""
    from nantrap.causes.rules.half_forward import overflowed_buffer, too_narrow

    written = overflowed_buffer(case)
    if written is None or not _is_copy_of_trained(case, written.name, trained):
        return None
    return too_narrow(
        case,
        written,
        f"{written.name}, a copy of a trained weight, is kept in float16 and overflowed",
    )


def _average_written_unseen(case: Case, trained: set[str]) -> Claim | None:
    """A copy of a trained weight became bad in this step, and the operation that failed was not seen."""
    if case.failure.repeatable or case.location.op is not None or not _trained_is_finite(case, trained):
        return None
    before = case.external.name if case.external is not None and not case.external.during else None
    bad = [name for name in _bad_buffers(case) if name != before]  # that one was bad when the forward pass began
    name = next((name for name in bad if _is_copy_of_trained(case, name, trained)), None)
    if name is None:
        return None
    return Claim(
        "hint",
        f"{name}, shaped and named like a trained weight, became non-finite in this step",
        (f"{name} was finite before the step; what the optimizer trains is finite",),
        help=f"look at what writes {name}: an average needs float32 and a divisor that is not 0",
    )


def _trained(case: Case) -> set[str]:
    """The names of the parameters that the optimizer moves."""
    optimized = {id(p) for group in case.failure.optimizer.param_groups for p in group["params"]}
    return {name for name, p in case.failure.parameters.items() if id(p) in optimized}


def _written_beside_the_update(case: Case) -> list[Finding]:
    """What became bad during the update though the optimizer does not train it: a hook of the update wrote it."""
    if case.phase != "optimizer":
        return []
    trained = _trained(case)
    bad = [f for f in case.incident.findings if f.kind in ("parameter", "buffer")]
    return bad if all(f.name not in trained for f in bad) else []


def _is_copy_of_trained(case: Case, name: str, trained: set[str]) -> bool:
    """Whether a tensor has the last word and the shape of one that is trained, as an average of it does."""
    tensor = {**dict(case.failure.root.named_buffers()), **case.failure.parameters}.get(name)
    return tensor is not None and any(
        _last_word(one) == _last_word(name) and case.failure.parameters[one].shape == tensor.shape for one in trained
    )


def _original_of(case: Case, name: str, trained: set[str]) -> str:
    """What a tensor is a copy of by its name and shape: another buffer, or `a trained weight`. Empty for no copy."""
    return _twin_of_buffer(case, name) or ("a trained weight" if _is_copy_of_trained(case, name, trained) else "")


def _twin_of_buffer(case: Case, name: str) -> str:
    """The buffer of which a buffer is a copy by name and shape: `net.1.running_var` of `ema.1__running_var`. Empty
    without one."""
    buffers = dict(case.failure.root.named_buffers())

    def inside(of: str) -> str:
        """The name below the part of the model, which alone differs in a copy of the model."""
        return of.partition(".")[2].replace("__", ".").replace("_", ".")

    own = buffers.get(name)
    return next(
        (
            one
            for one, tensor in buffers.items()
            if own is not None and one != name and inside(one) == inside(name) != "" and tensor.shape == own.shape
        ),
        "",
    )


def _is_computed_from(case: Case, name: str, trained: set[str]) -> bool:
    """Whether the update was seen to compute a copy of a trained weight from that weight, as an average is."""
    tensor = {**dict(case.failure.root.named_buffers()), **case.failure.parameters}.get(name)
    writer = None if case.trace is None or tensor is None else case.trace.writer_of(tensor)
    if case.trace is None or writer is None:
        return False
    twins = [one for one in trained if _last_word(one) == _last_word(name)]
    return any(case.trace.computes_from(writer, case.failure.parameters[one]) for one in twins)


def _last_word(name: str) -> str:
    """`weight` of `net.0.weight`, and of `0_weight`: buffers cannot have a dot in their name."""
    return name.replace(".", "_").rpartition("_")[2]


def _trained_is_finite(case: Case, trained: set[str]) -> bool:
    from nantrap.finite import any_nonfinite

    return not any_nonfinite([case.failure.parameters[name] for name in trained])


@rule("state_overwritten")
def state_overwritten(case: Case) -> Claim | None:
    """The program itself wrote a non-finite value into its own state."""
    external = case.external
    if external is None and (written := _written_by_the_pass(case) or _written_between_steps(case)) is not None:
        return written
    if (beside := _written_beside_by_a_hook(case)) is not None:
        return beside
    if external is None:
        return _lone_giant(case)
    if external.kind not in ("parameter", "buffer", "overwritten"):
        return None
    if external.during:
        return _written_during_the_pass(case, external)
    if _is_bad_since_it_was_made(case, external):
        name = _name_of(external)
        text = f"{name} {describe(external.tensor)} before the first step, and no write to it was counted"
        return Claim("hint", f"{name} was made with a non-finite value by the program itself", (text,), help=_AT_START)
    if _has_another_reason(case, external) or _has_bits_that_nothing_writes(case, external):
        return None
    return _written_before_the_step(case, external)


def _written_by_the_pass(case: Case) -> Claim | None:
    """The forward pass, or the code around it, wrote a parameter or a buffer; loss and gradients are finite."""
    written = [f for f in case.incident.findings if (f.kind, f.phase) == ("parameter", "forward")]
    replaced = {name: how for name in _bad_buffers(case) if (how := written_as(case, name)) in ("new", "outside")}
    written += [f for f in case.incident.findings if f.kind == "buffer" and f.name in replaced]
    if not written or not _only_buffers(case):
        return None
    first = written[0]
    who = "the code around the model" if replaced.get(first.name) == "outside" else "the forward pass"
    return _overwritten(
        first.name, "measured", f"{who} wrote {first.name}: {_held_by(first)}; loss and gradients are finite"
    )


def _written_between_steps(case: Case) -> Claim | None:
    """A parameter was finite after the last good step, and was written before this one."""
    between = [f for f in case.incident.findings if f.kind == "parameter" and f.name in case.failure.written_between]
    if not between or case.phase != "state":
        return None
    first = between[0]
    text = f"{first.name}: {_held_by(first)}; it was finite after the last good step, and was written since"
    return _overwritten(first.name, "measured", text)


def _written_beside_by_a_hook(case: Case) -> Claim | None:
    """The update made something non-finite that the optimizer does not train, and that is no average of the weights."""
    trained = _trained(case)
    beside = [f for f in _written_beside_the_update(case) if not _original_of(case, f.name, trained)]
    if not beside:
        return None
    first = beside[0]
    text = f"{first.name}: {_held_by(first)} after the update, and the optimizer does not train it"
    return _overwritten(first.name, "measured", text)


def _written_during_the_pass(case: Case, external: External) -> Claim:
    """A value was finite when the forward pass began, and was bad when an operation read it."""
    from nantrap.finite import any_nonfinite

    name, op = _name_of(external), None if case.trace is None else case.trace.overwriter_of(external.tensor)
    if op is not None:
        held = "" if not any_nonfinite([external.tensor]) else f" {describe(external.tensor)}"  # restored by now
        return _overwritten(name, "measured", f"{name}{held}: {_writer_in_words(op)}")
    text = f"{name} {describe(external.tensor)} inside the forward pass, and no operation that was seen wrote it"
    return _overwritten(name, "measured", text)


def _is_bad_since_it_was_made(case: Case, external: External) -> bool:
    """Whether the run begins with this value: it was neither loaded nor written since the program made it."""
    loaded = case.was_loaded_bad(_name_of(external))
    return case.first_step and not loaded and external.kind != "overwritten" and made_so(external.tensor)


def _has_another_reason(case: Case, external: External) -> bool:
    """Whether a value that was bad before the step was bad by design, was loaded so, or was bad for longer."""
    name = _name_of(external)
    if external.kind == "buffer" and name in case.failure.deliberate:
        return True  # it was bad from the start, and by design
    if case.first_step or case.was_loaded_bad(name) or external.kind == "overwritten":
        return True
    # what was bad all the time and was not read until now: see loaded_state
    return case.is_updated_in_forward(external) or name in case.run.bad_before


def _has_bits_that_nothing_writes(case: Case, external: External) -> bool:
    """Whether the one bad value has bits that no assignment writes, and the step does not write it: see
    hardware_fault."""
    from nantrap.finite import has_nan_payload, plain_values

    values = plain_values(external.tensor)
    bad = None if values is None else values[~values.isfinite()]
    odd = bool(case.run.untouched) and bad is not None and bad.numel() == 1 and has_nan_payload(bad)
    return odd and not case.lab.writes_again(_name_of(external), external.tensor)


def _written_before_the_step(case: Case, external: External) -> Claim:
    """A parameter or buffer was bad before this step: what wrote it, or since when it is bad."""
    name = _name_of(external)
    if (written_by := _written_by(case, external)) is not None:
        return _overwritten(name, "measured", f"{name} {describe(external.tensor)}: {written_by}")
    sure = case.run.untouched or name in case.failure.written_between
    since = "it was finite after the last step" if case.run.untouched else "the last step was applied"
    if name in case.failure.written_between:
        since = "it was finite after the last good step"
    return _overwritten(
        name, "measured" if sure else "hint", f"{name} {describe(external.tensor)} before this step; {since}"
    )


def _name_of(external: External) -> str:
    return external.name or "a value of the forward pass"


def _held_by(finding: Finding) -> str:
    """The statistics of a finding in words."""
    return finding.stats.describe() if finding.stats else "it is non-finite"


def _lone_giant(case: Case) -> Claim | None:
    """One weight is far beyond all others of its tensor, and without it the step is finite: no update makes that.

    A flipped bit of the exponent looks so, and so does a write by the program: which of the two is not decided.
    """
    if case.phase not in ("forward", "backward") or not case.failure.repeatable:
        return None
    wrote = "it was loaded or written so" if case.first_step else "the program wrote it"
    back = "start from another checkpoint" if case.first_step else "roll back to an older state"
    for name, parameter in case.failure.parameters.items():
        giant = lone_giant(parameter)
        if giant is None:
            continue
        largest, second = giant

        def clear(parameter: Tensor = parameter, bound: float = largest) -> None:
            parameter.masked_fill_(parameter.abs() >= bound, 0.0)

        trial = case.lab.with_weights("without_giant", f"the one value of {largest:.3g} in {name} set to 0", clear)
        if trial.finite:
            return Claim(
                "hint",
                f"one value of {name} is {largest:.3g}: {wrote}, or a bit of it flipped in memory",
                (f"the other {parameter.numel() - 1:,} values of {name} stay within {second:.3g}",),
                also=((trial, "with that one value set to 0 the step is finite"),),
                help=f"{back}; look for what writes {name} besides the optimizer, and if nothing "
                "does and it happens again, test the memory of this machine",
            )
    return None


def _written_by(case: Case, external: External) -> str | None:
    """What writes bad values into a parameter or buffer inside the step, in words; `None` if nothing was seen to."""
    if case.trace is not None and (op := case.trace.overwriter_of(external.tensor)) is not None:
        return _writer_in_words(op)
    if case.lab.writes_again(external.name, external.tensor):
        return "with those values set to 0, the step writes them again"
    return None


def _writer_in_words(op: Op) -> str:
    line = "" if op.place is None else f", in line {op.place.line} of {op.place.source().function}"
    return f"{op.name} writes non-finite values over it inside the step{line}"


def _overwritten(name: str, has: Has, text: str) -> Claim:
    return Claim(
        has,
        f"{name} was overwritten with a non-finite value by the program itself",
        (text,),
        help=f"look for what writes {name} besides the optimizer: tensor.data, copy_ under no_grad, NumPy, a reset of "
        "entries; check the value before it is written (guard.check_state() after it names it immediately)",
    )


def written_as(case: Case, name: str) -> Literal["average", "new", "outside", "unseen"]:
    """How a buffer got its value in the step.

    `average`: computed from its old value, as a running average is. `new`: from other values. `outside`: the model's
    calls were traced and did not write it, so the code around them did. `unseen`: nothing was traced.
    """
    replay, buffer = case.location.replay, dict(case.failure.root.named_buffers()).get(name)
    if replay is None or buffer is None:
        return "unseen"
    writer = replay.trace.writer_of(buffer)
    if writer is None:
        return "outside" if not case.failure.repeatable and replay.trace.ops and replay.error is None else "unseen"
    return "average" if replay.trace.computes_from(writer, buffer) else "new"


def _bad_buffers(case: Case) -> list[str]:
    """The buffers that the forward pass made non-finite."""
    return [f.name for f in case.incident.findings if f.kind == "buffer" and f.name in case.failure.bad_buffers]


def _only_buffers(case: Case) -> bool:
    """Whether loss and gradient norm are finite, so that what the forward pass wrote is all that is bad."""
    loss, norm = case.incident.loss, case.incident.grad_norm
    return (
        loss is not None
        and loss == loss
        and abs(loss) != float("inf")
        and norm is not None
        and norm == norm
        and abs(norm) != float("inf")
    )
