"""NT6xx: what was bad when it was made or loaded: memory that was never filled, checkpoints, optimizer state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.facts import describe, made_so, share, was_computed
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.trace import External

_SIGNED = ("exp_avg", "momentum_buffer", "prev", "ax", "mu")
"""Memory of optimizers that may be negative: first moments and earlier values."""


@rule("uninitialised_memory")
def uninitialised_memory(case: Case) -> Claim | None:
    """A parameter or buffer was never initialised.

    `torch.empty`, `to_empty()` or `empty_like` gives memory with whatever was in it. Often that is zeros, sometimes
    1e38 or NaN, so the same code works on one machine and fails on another. Keys that are missing from a checkpoint
    loaded with `strict=False` have the same effect.

    Example:
        import torch
        from torch import nn

        torch.use_deterministic_algorithms(True)  # fills empty memory with NaN, so that the fault shows every time
        model = nn.Linear(4, 4)
        model.scale = nn.Parameter(torch.empty(4))  # and nothing fills it
        torch.use_deterministic_algorithms(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(8, 4)]

        def loss_fn(batch):
            return (model(batch) * model.scale).square().mean()

    Why:
        An allocator returns memory without clearing it: it holds the bits of freed tensors, and any 32 bits are
        some float32. One pattern in 256 is NaN or Inf, and many more are absurd.

    Fix:
        Initialise it, and check what loading did not fill:

            - self.scale = nn.Parameter(torch.empty(4))
            + self.scale = nn.Parameter(torch.ones(4))

            - model.load_state_dict(saved, strict=False)
            + missing = model.load_state_dict(saved, strict=False).missing_keys
            + assert not missing, missing

        After `to_empty()` call `reset_parameters()` on every module that has it. Replacing NaN in the weights leaves
        the finite garbage in.

    Proof:
        The tensor is non-finite before the first step, and nothing was ever written to it (its version counter is 0),
        or whole rows, or all of it, are bad: memory that was never filled. Or the result of `torch.empty` was read in
        the step.
    """
    capture = case.capture
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
    external = case.external
    if external is None or external.kind not in ("parameter", "buffer") or not case.first_step or external.during:
        return None
    if not _never_written(case, external.tensor):
        return None
    return Claim(
        "measured",
        f"{external.name} was never initialised",
        (
            f"{external.name} {describe(external.tensor)} before the first step",
            (
                "it looks like memory that was never filled (torch.empty, or a key missing from the checkpoint): no "
                "write to it "
                "was counted, or whole rows of it are bad"
            ),
        ),
        help=f"initialise it (nn.init.xavier_uniform_, torch.zeros), or check the missing keys of load_state_dict for "
        f"{external.name}",
    )


@rule("corrupt_checkpoint")
def corrupt_checkpoint(case: Case) -> Claim | None:
    """The weights were non-finite when they were loaded.

    The checkpoint was saved after the run had gone NaN, converted to float16 and overflowed, or damaged on the way.
    The first forward pass after loading is bad, on every batch. A lower learning rate and other data change nothing.

    Example:
        import torch
        from torch import nn

        saved = {name: value.clone() for name, value in nn.Linear(6, 4).state_dict().items()}
        saved["weight"][1, 3] = float("nan")  # saved one step too late
        model = nn.Linear(6, 4)
        model.load_state_dict(saved)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(8, 6)]

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        The common order is update, save, then look at the next loss. The loss that shows the damage comes one step
        after the weights were written, so the newest checkpoint of a failed run is often the bad one.

    Fix:
        Resume from the newest healthy checkpoint, and refuse to save bad ones:

            - torch.save(model.state_dict(), path)
            + nantrap.CheckpointStore(folder).save(...)  # refuses a non-finite state

        `nantrap audit runs/exp1` names the newest healthy one. `nan_to_num` on the weights makes the model run with
        missing weights, and the optimizer's moments next to it are NaN as well.

    Proof:
        A parameter or buffer is non-finite before the first step although it was written after it was made, at single
        places: a loaded value, not empty memory. Or it is non-finite in the first step after `load_state_dict`, which
        found every key. The counts are a measurement.
    """
    external = case.external
    if external is None or external.kind not in ("parameter", "buffer") or (external.during and not case.loaded):
        return None
    if not case.loaded and not case.first_step:
        return _not_read_until_now(case, external)
    if not case.loaded and _never_written(case, external.tensor):
        return None
    if not case.loaded and made_so(external.tensor) and not _is_bad_everywhere(case):
        return None  # nothing was written after it was made: see state_overwritten
    bad = ~external.tensor.detach().isfinite()
    when = "inside this step" if external.during else "before the first step" if case.first_step else "before this step"
    why = "load_state_dict wrote the model since the last step" if case.loaded else _why_loaded(case, bad)
    return Claim(
        "measured",
        f"{external.name} was non-finite when it was loaded"
        if case.loaded
        else f"{external.name} was non-finite before the first step: a bad checkpoint",
        (f"{external.name} {describe(external.tensor)} {when}", why),
        help="nantrap audit on the checkpoint folder names the newest healthy one; start from that",
    )


@rule("corrupt_optimizer_state")
def corrupt_optimizer_state(case: Case) -> Claim | None:
    """The optimizer state was bad before the step.

    Weights, loss and gradients are finite. The optimizer's memory is not: a NaN in the momentum, a negative second
    moment, an Inf from a float16 copy, restored with a checkpoint. It also happens when the weights are cleaned by hand
    and the moments are forgotten.

    Example:
        import torch

        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        saved = optimizer.state_dict()
        saved["state"][0]["momentum_buffer"][1] = float("nan")  # saved after the bad step
        optimizer.load_state_dict(saved)
        batches = [torch.randn(8, 4)]

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        A moment is an average of the past: m ← β·m + (1 - β)·g. β · NaN is NaN, so it stays NaN. Every later
        update writes NaN into the weights, whatever the gradient.

    Fix:
        Restore an older state, or reset it for these parameters:

            - optimizer.load_state_dict(saved)
            + optimizer.load_state_dict(saved)
            + optimizer.state.clear()  # the moments are rebuilt within some hundred steps; warm the learning rate up

        Skipping the step does not help, the state stays bad and the next step is the same. Clipping does not help:
        the gradients are fine.

    Proof:
        The state was non-finite, or a second moment negative, before the update; weights and gradients are finite;
        and the same update with a fresh state is finite.
    """
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
    return Claim(
        "tried",
        "the optimizer state was bad before the step",
        (text, *(("weights and gradients are finite",) if _weights_and_gradients_are_finite(case) else ())),
        trial=case.lab.fresh_optimizer_state(),
        shows="with a fresh optimizer state the same update is finite",
        help="restore the optimizer state from an older checkpoint, or reset it (optimizer.state.clear())",
    )


def _negative_second_moment(case: Case) -> str:
    """What is negative, in words, where the update took the root of a negative number and the optimizer has memory of
    that shape: a second moment itself, or what was computed from several moments that do not fit together."""
    if case.phase != "optimizer" or case.op not in ("sqrt", "rsqrt") or not case.inputs:
        return ""
    from nantrap.locate.optimizers import states_of

    below = case.inputs[0] < 0
    memory = [
        value
        for _, state in states_of(case.failed.optimizer)
        for key, value in state.items()
        if key not in _SIGNED and getattr(value, "shape", None) == below.shape
    ]
    if not bool(below.any()) or not memory:
        return ""
    own = any(bool((value[below] < 0).all()) for value in memory)
    return "the second moment is" if own else "what the update computes from its moments is"


def _weights_and_gradients_are_finite(case: Case) -> bool:
    from nantrap.finite import any_nonfinite

    return not any_nonfinite([*case.failed.parameters.values(), *case.failed.gradients.values()])


def _never_written(case: Case, tensor: Tensor) -> bool:
    """Whether (part of) the tensor still holds what its allocation gave.

    Nothing was written in place, or everything is bad, or whole rows or columns are: a part that was never filled.
    Flipped bits and bad shards look different: single, scattered values. And a state that was saved after a NaN step is
    bad everywhere, in every parameter.
    """
    from nantrap.locate.torch_private import version_of

    bad = ~tensor.detach().isfinite()
    if was_computed(tensor):
        return False
    if version_of(tensor) == 0:
        return True
    if _is_bad_everywhere(case):
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
    step = case.bad_before.get(external.name)
    if step is None:
        return None
    return Claim(
        "hint",
        f"{external.name} was non-finite before step {step:,} already",
        (f"{external.name} {describe(external.tensor)}; it took no part in step {step:,}, which was applied",),
        help=f"initialise {external.name} as a whole (new rows of an embedding, a key missing from the checkpoint), or "
        "start from a healthy checkpoint: nantrap audit names it",
    )


def _why_loaded(case: Case, bad: Tensor) -> str:
    if _is_bad_everywhere(case):
        return "more than half of all parameters are non-finite: a state that was saved after a bad step"
    return f"it was written after it was made, and only {share(bad)} are bad: a loaded value, not empty memory"


def _is_bad_everywhere(case: Case) -> bool:
    """Whether several parameters, and more than half of them, are non-finite: one NaN step writes them all."""
    from nantrap.finite import any_nonfinite

    parameters = [p.detach() for p in case.failed.parameters.values()]
    bad = sum(any_nonfinite([parameter]) for parameter in parameters)
    return bad > 1 and (bad == len(parameters) or (bad > 2 and 2 * bad > len(parameters)))
