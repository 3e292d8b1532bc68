"""NT6xx: what was bad when it was made or loaded: memory that was never filled, checkpoints, optimizer state."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Remedy, rule
from nantrap.causes.facts import SECOND_MOMENTS, all_finite, describe, made_so, rows_in_words, share, was_computed

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.trace import External

_HELP = "nantrap audit on the checkpoint folder names the newest healthy one; start from that"
_SIGNED = ("exp_avg", "momentum_buffer", "prev", "ax", "mu")
"""Memory of optimizers that may be negative: first moments and earlier values."""


@rule("uninitialised_memory")
def uninitialised_memory(case: Case) -> Claim | None:
    """Memory was read that nothing had been written to: of a parameter, a buffer, or the result of an operator."""
    from nantrap.finite import bad_places

    capture = case.capture
    if case.location.unwritten:
        return _left_unwritten(case)
    if (
        capture is None
        and case.trace is not None
        and (case.location.op or "").startswith(("aten.empty", "aten.new_empty"))
    ):
        return Claim(
            "measured",
            f"{case.location.op} was read before anything was written to it",
            (f"the result of {case.location.op} was read while it still held what was in memory",),
            help="torch.zeros instead of torch.empty, or fill it before it is read",
        )
    external, held = case.external, case.location.constant
    if external is None and held is not None and not case.location.entered and _looks_unfilled(case, held[1]):
        return _rows_of_a_store(*held)
    if external is None or external.kind not in ("parameter", "buffer") or not case.first_step or external.during:
        return None
    untouched = _never_written(external.tensor) or _is_beside_unfilled(case, external.tensor)
    if case.was_loaded_bad(external.name) or not (untouched or _looks_unfilled(case, external.tensor)):
        return None
    whole = bool(bad_places(external.tensor).all())
    return Claim(
        "measured" if untouched else "hint",
        f"{external.name} was never initialised" if whole else f"a part of {external.name} was never initialised",
        (
            f"{external.name} {describe(external.tensor)} before the first step",
            "no write to it was counted since it was made, by torch.empty or as NaN to be filled later"
            if untouched
            else f"{'all of it is' if whole else 'whole rows or columns of it are'} bad, as in memory that was never "
            "filled (torch.empty, or a key missing from the checkpoint); a file may hold the same values",
        ),
        help=f"initialise it (nn.init.xavier_uniform_, torch.zeros), or check the missing keys of load_state_dict for "
        f"{external.name}",
    )


def _rows_of_a_store(name: str, tensor: Tensor) -> Claim:
    """A tensor that only the program knows (a ring of earlier steps), read where nothing may have been written."""
    from nantrap.finite import bad_places

    called = name or "a tensor that the program holds"
    return Claim(
        "hint",
        f"{called} was read where it looks as if nothing had been written to it",
        (f"{name or 'it'} {describe(tensor)}, {rows_in_words(bad_places(tensor))}: as torch.empty may leave them",),
        help="draw only indices of what was written (its size so far, not its capacity), or make it with torch.zeros",
    )


def _left_unwritten(case: Case) -> Claim | None:
    """An operator or a line of the program allocates memory, does not write all of it, and the step reads it."""
    bad, good = case.lab.memory_filled(zeros=False), case.lab.memory_filled(zeros=True)
    if bad.finite is not False or not good.finite:
        return None
    name = case.location.op or "an operator"
    facts = [f"with fresh memory filled with NaN the step is not finite (trial {bad.number})"]
    if case.output is None:
        summary = f"the memory that {name} gave was read before all of it was written"
    else:
        summary = f"{name} leaves a part of its result unwritten"
        facts.append(
            f"in that run {name} gives NaN {rows_in_words(~case.output.detach().isfinite())}{all_finite(case.inputs)}"
        )
    return Claim(
        "measured",
        summary,
        tuple(facts),
        trial=good,
        shows="with fresh memory filled with zeros the same step is finite: what was in the memory decides",
        remedies=(
            Remedy("torch.zeros, zeros_like or new_zeros instead of torch.empty, empty_like or new_empty", good),
        ),
        help="write every element of the result (check the bounds of the loop or of the grid)",
        note="with zeros, what was never computed is 0",
        compares=True,
    )


@rule("corrupt_checkpoint")
def corrupt_checkpoint(case: Case) -> Claim | None:
    """The weights were non-finite when they were loaded."""
    external = case.external
    if external is None or external.kind not in ("parameter", "buffer"):
        return None
    if case.was_loaded_bad(external.name):
        since = (
            "inside this step"
            if external.during
            else "before the first step"
            if case.first_step
            else "since the last step"
        )
        return Claim(
            "measured",
            f"{external.name} was non-finite when it was loaded",
            (
                f"{external.name} {describe(external.tensor)}",
                f"load_state_dict wrote the model {since}, and left it non-finite",
            ),
            help=_HELP,
        )
    if external.during:
        return None
    if not case.first_step:
        return _not_read_until_now(case, external)
    unfilled = _never_written(external.tensor) or _is_beside_unfilled(case, external.tensor)
    if unfilled or (made_so(external.tensor) and not _is_bad_everywhere(case)):
        return None  # nothing was written after it was made: see uninitialised_memory and state_overwritten
    return Claim(
        "hint",
        f"{external.name} was non-finite before the first step: a bad checkpoint, or made so with the model",
        (f"{external.name} {describe(external.tensor)} before the first step", _why_loaded(case)),
        help=f"{_HELP}. If nothing was loaded, look at what gives {external.name} its first value: log 0, x / 0",
    )


@rule("corrupt_optimizer_state")
def corrupt_optimizer_state(case: Case) -> Claim | None:
    """The optimizer state was bad before the step."""
    if case.phase not in ("optimizer", "state"):
        return None
    external = case.external
    negative = _negative_second_moment(case)
    if not negative and (external is None or external.kind != "optimizer_state"):
        return None
    if negative:
        text = f"{negative} negative at {share(case.inputs[0] < 0)}: the square root of that is NaN"
    else:
        assert external is not None
        text = f"{external.name} {describe(external.tensor)} before the step"
    trial = case.lab.fresh_optimizer_state()
    return Claim(
        "tried",
        "the optimizer state was bad before the step",
        (text, *(("weights and gradients are finite",) if _weights_and_gradients_are_finite(case) else ())),
        trial=trial,
        shows="with a fresh optimizer state the same update is finite",
        remedies=(Remedy("reset it: optimizer.state.clear()", trial),),
        help="restore the optimizer state from an older checkpoint",
    )


def _negative_second_moment(case: Case) -> str:
    """What is negative, in words, where the update took the root of a negative number and the optimizer has memory of
    that shape: a second moment itself, or what was computed from several moments that do not fit together."""
    if case.phase != "optimizer" or case.op not in ("sqrt", "rsqrt") or not case.inputs:
        return ""
    from nantrap.locate.wrapping import states_of

    below = case.inputs[0] < 0
    if not bool(below.any()):
        return ""
    states = [
        (key, v) for _, state in states_of(case.failure.optimizer) for key, v in state.items() if hasattr(v, "dim")
    ]
    memory = [value for key, value in states if key not in _SIGNED and value.shape == below.shape]
    if not memory:  # a sparse gradient updates some rows only
        moments = [v for key, v in states if key in SECOND_MOMENTS and v.dim() > 1 and v.shape[1:] == below.shape[1:]]
        return "rows of the second moment are" if any(bool((v < 0).any()) for v in moments) else ""
    own = any(bool((value[below] < 0).all()) for value in memory)
    return "the second moment is" if own else "what the update computes from its moments is"


def _weights_and_gradients_are_finite(case: Case) -> bool:
    from nantrap.finite import any_nonfinite

    return not any_nonfinite([*case.failure.parameters.values(), *case.failure.gradients.values()])


def _never_written(tensor: Tensor) -> bool:
    """Whether the whole tensor still holds what its allocation gave: no write was counted, and it is bad everywhere.

    A single number is too few to tell: it may have been given as NaN. And only x86 processors mark a NaN that they
    computed, by its sign.
    """
    from nantrap.locate.torch_private import version_of

    bad = ~tensor.detach().isfinite()
    marked = tensor.is_cpu and platform.machine().lower() in ("x86_64", "amd64")
    return version_of(tensor) == 0 and bad.numel() > 1 and bool(bad.all()) and marked and not was_computed(tensor)


def _is_beside_unfilled(case: Case, tensor: Tensor) -> bool:
    """Whether a single number was not written since it was made, and another parameter holds what its allocation
    gave: `to_empty` and a model on the device `meta` leave all of them so."""
    from nantrap.locate.torch_private import version_of

    alone = tensor.numel() == 1 and version_of(tensor) == 0 and not was_computed(tensor)
    return alone and any(_never_written(parameter) for parameter in case.failure.parameters.values())


def _looks_unfilled(case: Case, tensor: Tensor) -> bool:
    """Whether (part of) the tensor looks like what its allocation gave: all of it is bad, or whole rows or columns are.

    Flipped bits and bad shards look different: single, scattered values. And a state that was saved after a NaN step is
    bad everywhere, in every parameter.
    """
    bad = ~tensor.detach().isfinite()
    if _never_written(tensor):
        return True
    if was_computed(tensor) or _is_bad_everywhere(case):
        return False
    if bad.numel() > 1 and bool(bad.all()):
        return True
    if float(bad.float().mean()) < 0.25:
        return False
    return any(
        bad.shape[dim] > 1 and bool((bad.all(dim=dim) == bad.any(dim=dim)).all())
        for dim in range(bad.dim())
        if bad.dim() > 1
    )


def _not_read_until_now(case: Case, external: External) -> Claim | None:
    """Values that were bad before an earlier step already. They did no harm while no step read them. Whether they were
    loaded or never filled cannot be told any more."""
    step = case.run.bad_before.get(external.name)
    if step is None:
        return None
    return Claim(
        "hint",
        f"{external.name} was non-finite before step {step:,} already",
        (f"{external.name} {describe(external.tensor)}; it took no part in step {step:,}, which was applied",),
        help=f"initialise {external.name} as a whole (new rows of an embedding, a key missing from the checkpoint), or "
        "start from a healthy checkpoint: nantrap audit names it",
    )


def _why_loaded(case: Case) -> str:
    if _is_bad_everywhere(case):
        return "more than half of all parameters are non-finite, as in a state that was saved after a bad step"
    return "what wrote these values was not seen: no step was applied before"


def _is_bad_everywhere(case: Case) -> bool:
    """Whether several parameters, and more than half of them, are non-finite: one NaN step writes them all."""
    from nantrap.finite import any_nonfinite

    parameters = [p.detach() for p in case.failure.parameters.values()]
    bad = sum(any_nonfinite([parameter]) for parameter in parameters)
    return bad > 1 and (bad == len(parameters) or (bad > 2 and 2 * bad > len(parameters)))
