"""NT6xx: what was bad before the step: parameters, buffers, optimizer state, averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim, Has
from nantrap.causes.facts import describe, share
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.trace import External, Op


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
        Initialise it, and look at what loading did not fill:

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
    if not case.loaded and (not case.first_step or _never_written(case, external.tensor)):
        return None
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
    negative = (
        case.phase == "optimizer" and case.op in ("sqrt", "rsqrt") and case.inputs and bool((case.inputs[0] < 0).any())
    )
    if not negative and (external is None or external.kind != "optimizer_state"):
        return None
    if negative:
        text = f"the second moment is negative at {share(case.inputs[0] < 0)}: the square root of that is NaN"
    else:
        assert external is not None
        text = f"{external.name} {describe(external.tensor)} before the step"
    return Claim(
        "tried",
        "the optimizer state was bad before the step",
        (text, "weights and gradients are finite"),
        trial=case.lab.fresh_optimizer_state(),
        shows="with a fresh optimizer state the same update is finite",
        help="restore the optimizer state from an older checkpoint, or reset it (optimizer.state.clear())",
    )


@rule("bn_buffers_poisoned")
def bn_buffers_poisoned(case: Case) -> Claim | None:
    """A buffer updated in the forward pass holds non-finite values.

    BatchNorm's running statistics, a quantisation observer or another buffer is written by the forward pass itself,
    before the loss is computed. After one bad batch, or an overflow in a half-precision buffer, it stays NaN or Inf.
    Training normalises by the batch and shows nothing; evaluation is NaN.

    Example:
        import torch
        from torch import nn

        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)).half()  # running_var is float16 as well
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [(torch.randn(32, 4) * scale).half() for scale in (1, 1, 2000)]

        def loss_fn(batch):
            return model(batch).float().square().mean()

    Why:
        running_var ← 0.9·running_var + 0.1·var. A standard deviation of 2,000 is harmless in float16, its variance of
        4,000,000 is not. Inf · 0.9 stays Inf: the average cannot recover.

    Fix:
        Keep such buffers in float32, and reset those that are bad already:

            - model = Net().half()
            + model = Net()  # and autocast around the forward pass
            + for module in model.modules():
            +     if isinstance(module, nn.modules.batchnorm._BatchNorm):
            +         module.reset_running_stats()

        `if loss.isnan(): continue` does not help: the forward pass has written the buffer by then. The guard puts
        buffers back when it skips a step.

    Proof:
        A buffer is non-finite after the forward pass (or was before the step) while parameters, loss and gradients
        are finite: a measurement.
    """
    external = case.external
    if (
        external is not None
        and external.kind == "buffer"
        and not case.first_step
        and case.is_updated_in_forward(external)
    ):
        name = external.name
        text = f"{external.name} {describe(external.tensor)} before the step"
        done = "the buffer was bad before this step; reset it (module.reset_running_stats()), and keep it in float32"
    elif (bad := _bad_buffers(case)) and _only_buffers(case) and accumulates(case, bad[0]) is not False:
        name = bad[0]
        text = f"the forward pass made {name} non-finite; loss and gradients are finite, so no check of them finds it"
        done = "keep the buffer in float32, and reset it (module.reset_running_stats()) where it is already bad"
    else:
        return None
    return Claim(
        "measured",
        f"{name}, updated in the forward pass, holds non-finite values",
        (text, "a skipped optimizer step does not undo what a forward pass wrote"),
        help=done,
    )


@rule("ema_poisoned")
def ema_poisoned(case: Case) -> Claim | None:
    """The averaged weights hold non-finite values.

    The model is healthy, its moving average is not. The average took in one bad step that was later rolled back in
    the model, is kept in float16 and overflowed, or divides by a counter that starts at 0. It is used for evaluation
    only, so training continues and the published weights are NaN.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(3, 1)
        model.average = nn.Linear(3, 1).requires_grad_(False)
        optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
        count = torch.zeros(())

        def update_average(*_):
            with torch.no_grad():
                model.average.weight.add_((model.weight - model.average.weight) / count)  # the first division is by 0
                count.add_(1)

        optimizer.register_step_post_hook(update_average)
        batches = [torch.randn(8, 3) for _ in range(2)]

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        avg ← decay·avg + (1 - decay)·w. Once Inf or NaN it stays so: decay · NaN is NaN. No gradient and no loss ever
        reads it.

    Fix:
        Update it after good steps only, in float32, and let the guard do both:

            - optimizer.step(); ema.update_parameters(model)
            + guard = nantrap.Guard(model, optimizer, ema=ema)
            + guard.attempt(loss_fn, batch)

        Rolling the model back without its average does not help. If the average is bad already, copy the model's
        weights into it and begin again.

    Proof:
        The averaged copy is non-finite while the model is finite, and no gradient ever moves it: a measurement.
    """
    optimized = {id(p) for group in case.failed.optimizer.param_groups for p in group["params"]}
    trained = {name for name, p in case.failed.parameters.items() if id(p) in optimized}
    averaged = [f for f in case.incident.findings if f.kind == "ema"]
    if case.phase == "optimizer":  # written by a hook of the update, though no learning rate ever moves it
        bad = [f for f in case.incident.findings if f.kind in ("parameter", "buffer")]
        if bad and all(f.name not in trained for f in bad):
            averaged += bad
    if not averaged:
        return None
    return Claim(
        "measured",
        f"the averaged weights are non-finite: {averaged[0].name}",
        (
            f"{averaged[0].name}: {averaged[0].stats.describe() if averaged[0].stats else averaged[0].note}",
            *(("what the optimizer trains is finite",) if _trained_is_finite(case, trained) else ()),
        ),
        help="keep the average in float32, update it only after applied steps (Guard(ema=...)), and guard its divisor",
    )


def _trained_is_finite(case: Case, trained: set[str]) -> bool:
    from nantrap.finite import any_nonfinite

    return not any_nonfinite([case.failed.parameters[name] for name in trained])


def _never_written(case: Case, tensor: Tensor) -> bool:
    """Whether (part of) the tensor still holds what its allocation gave.

    Nothing was written in place, or everything is bad, or whole rows or columns are: a part that was never filled.
    Flipped bits and bad shards look different: single, scattered values. And a state that was saved after a NaN step is
    bad everywhere, in every parameter.
    """
    from nantrap.locate.torch_private import version_of

    bad = ~tensor.detach().isfinite()
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


def accumulates(case: Case, name: str) -> bool | None:
    """Whether the forward pass computes a buffer's new value from its old one, as a running average does.

    Followed back through floating-point operations from what was written last. `None` if that cannot be seen.
    """
    replay, buffer = case.location.replay, dict(case.failed.root.named_buffers()).get(name)
    if replay is None or buffer is None:
        return None
    writer = replay.trace.writer_of(buffer)
    if writer is None:
        return None
    return replay.trace.computes_from(writer, buffer)


def _bad_buffers(case: Case) -> list[str]:
    """The buffers that the forward pass made non-finite."""
    return [f.name for f in case.incident.findings if f.kind == "buffer" and f.name in case.failed.bad_buffers]


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


@rule("state_overwritten")
def state_overwritten(case: Case) -> Claim | None:
    """The program itself wrote a non-finite value into its own state.

    A parameter or buffer was finite when the last step ended and is not now. Between the two, or inside the forward
    pass, the program wrote it: a codebook entry that is reset to the mean of no sample, a weight that is divided by its
    norm of 0, a row that is loaded into a table. Writes through `tensor.data`, NumPy or a custom kernel leave no mark
    in PyTorch, so that only the damage is seen.

    Example:
        import torch
        import nantrap

        torch.manual_seed(0)
        model = torch.nn.Embedding(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss_fn(batch):
            return model(batch).square().mean()

        guard = nantrap.Guard(model, optimizer)
        for _ in range(2):
            guard.attempt(loss_fn, torch.randint(0, 6, (8,)))
        members = torch.zeros(0, 3)  # no sample uses this code
        model.weight.data[4] = members.mean(0)  # the mean of nothing is NaN
        batches = [torch.arange(6)]

    Why:
        Nothing checks what is assigned to a weight. The optimizer did not write it, no gradient shows it, and a skipped
        step does not undo it.

    Fix:
        Check what is written before it is written:

            - model.codes.data[dead] = samples[chosen].mean(0)
            + if chosen.any():
            +     model.codes.data[dead] = samples[chosen].mean(0)

        `guard.check_state()` after such a write names it immediately. `nan_to_num` on the weight hides it and trains on
        zeros.

    Proof:
        The state was seen finite after the last step and holds non-finite values before this one, or it changed inside
        the forward pass while no operation that could be seen wrote it: a measurement. The bits of the values are
        checked: a NaN that no arithmetic makes points to another cause.
    """
    external = case.external
    written = [f for f in case.incident.findings if (f.kind, f.phase) == ("parameter", "forward")]
    replaced = [name for name in _bad_buffers(case) if accumulates(case, name) is False]
    written += [f for f in case.incident.findings if f.kind == "buffer" and f.name in replaced]
    if written and external is None and _only_buffers(case):
        said = written[0].stats.describe() if written[0].stats else "it is non-finite"
        text = f"the forward pass wrote {written[0].name}: {said}; loss and gradients are finite"
        return _overwritten(written[0].name, "measured", text)
    if external is None or external.kind not in ("parameter", "buffer", "overwritten"):
        return None
    name = external.name or "a value of the forward pass"
    if external.during and case.trace is not None and (op := case.trace.overwriter_of(external.tensor)) is not None:
        return _overwritten(name, "measured", f"{name} {describe(external.tensor)}: {_writer_in_words(op)}")
    if external.during:
        text = f"{name} {describe(external.tensor)} inside the forward pass, and no operation that was seen wrote it"
        return _overwritten(name, "measured", text)
    if case.first_step or case.loaded or external.kind == "overwritten" or case.is_updated_in_forward(external):
        return None
    from nantrap.finite import has_nan_payload

    bad = external.tensor.detach()[~external.tensor.detach().isfinite()]
    odd = bool(case.state_untouched) and bad.numel() == 1 and has_nan_payload(bad)
    if odd and not case.lab.writes_again(name, external.tensor):
        return None  # no assignment writes such bits: see hardware_fault
    if (written_by := _written_by(case, external)) is not None:
        return _overwritten(name, "measured", f"{name} {describe(external.tensor)}: {written_by}")
    sure = case.state_untouched
    since = "it was finite after the last step" if case.state_untouched else "the last step was applied"
    return _overwritten(
        name, "measured" if sure else "hint", f"{name} {describe(external.tensor)} before this step; {since}"
    )


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
