"""NT5xx: the learning rate, the gradients, the initialisation. These look at the steps before the failure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.registry import rule
from nantrap.causes.rounds import growing_rounds
from nantrap.incident import Trial

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case

_GROWTH = 8.0
_FEWEST_ROUNDS = 8
_STILL = 8
_KNOWN_LAYOUT = ("Linear", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "RNN", "Bilinear", "MultiheadAttention")


@rule("lr_too_high")
def lr_too_high(case: Case) -> Claim | None:
    """The learning rate is beyond the stability limit.

    Each update overshoots by more than it gains. The loss grows from step to step, slowly at first, until something
    overflows. The operation that overflowed only shows it: the cause is in the steps before.

    Example:
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
        batches = [(torch.randn(16, 8), torch.randn(16, 1)) for _ in range(40)]

        def loss_fn(batch):
            x, y = batch
            return (model(x) - y).square().mean()

    Why:
        Gradient descent on a curvature λ multiplies the error by 1 - lr·λ in each step. Above lr = 2/λ its size
        exceeds 1 and the error grows geometrically. Networks have many curvatures; the largest one decides, and it
        changes as they learn.

    Fix:
        Lower the learning rate, warm it up, or bound the step:

            - optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
            + optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        `max_grad_norm=1.0` bounds the step and often suffices. `nan_to_num(loss)` and skipping bad steps do not help:
        the weights were far off many steps before the first NaN, so resume from a checkpoint from before the growth.

    Proof:
        The loss or the gradient norm grew over the last steps, and the same batches from an older state with a tenth
        of the learning rate stay finite. If they do not, the cause is dropped and listed as refuted.
    """
    if case.phase not in ("forward", "backward", "optimizer") or case.growth < _GROWTH or rate_jump(case) is not None:
        return None
    overflowed = case.incident.loss is None or not math.isfinite(case.incident.loss)
    if not case.failed.repeatable and not overflowed:
        return None  # nothing can be tried, and a finite loss that rose does not show an unstable learning rate
    if case.lab.weights_diverged() is False:
        return None  # the loss of an earlier batch has not risen: the batches differ, the weights did not get worse
    records = case.history.applied()[-6:]
    shown = " -> ".join(f"{record.loss:.3g}" for record in records)
    rate = records[-1].lr[0] if records and records[-1].lr else math.nan
    trial = case.lab.rate("tenth_of_rate", "a tenth of the learning rate from an older state on", lambda _, lr: lr / 10)
    if trial.finite is False:
        case.refute("lr_too_high", trial, "a tenth of the learning rate does not help")
        return None
    known = math.isfinite(rate)
    tried = (
        f" (the same steps stay finite at {rate / 10:.3g})" if trial.finite else f" (for example to {rate / 10:.3g})"
    )
    rose = case.loss_growth >= _GROWTH
    grew = ("the loss grew" if rose else "the gradients grew") + (" until it overflowed" if overflowed and rose else "")
    return Claim(
        "tried",
        f"a learning rate of {rate:.4g} is beyond the stability limit: {grew}"
        if trial.finite
        else f"the learning rate{f' of {rate:.4g}' if known else ''} may be too high: {grew}",
        ("an earlier batch has a far larger loss now, with the same random numbers",)
        if case.lab.weights_diverged()
        else (),
        history=(f"the loss went {shown} before the failure",),
        trial=trial,
        shows="the same batches with a tenth of the learning rate stay finite",
        help=f"lower the learning rate{tried if known else ''}, warm it up, or clip the gradients",
        verifies=_is_stable(case, trial),
    )


def _is_stable(case: Case, trial: Trial) -> bool:
    """Whether the loss did not grow at the lower learning rate either: finite for a few steps is not yet stable."""
    first = next((abs(record.loss) for record in case.history.applied()), math.inf)
    return trial.loss is not None and abs(trial.loss) <= 2 * first


@rule("resume_lr_jump")
def resume_lr_jump(case: Case) -> Claim | None:
    """Restored state changed the learning rate.

    After a resume the learning rate is not what the configuration says: `optimizer.load_state_dict` brings the learning
    rate of the saved run along, a scheduler starts again from its beginning, a warm-up is skipped. Training was stable
    before and explodes within a few steps.

    Example:
        import copy
        import torch
        import nantrap

        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        saved = copy.deepcopy(optimizer.state_dict())
        saved["param_groups"][0]["lr"] = 50.0  # of another experiment

        def loss_fn(batch):
            return (model(batch) - 1).square().mean()

        guard = nantrap.Guard(model, optimizer)
        for _ in range(4):
            guard.attempt(loss_fn, torch.randn(16, 8))
        optimizer.load_state_dict(saved)  # the resume
        batches = [torch.randn(16, 8) for _ in range(40)]

    Why:
        `state_dict()` of an optimizer holds the parameter groups with their `lr`, and loading overwrites what the
        constructor was given. A scheduler restores `base_lrs` and `last_epoch` and writes the learning rate again at
        its next step.

    Fix:
        Set the learning rate after loading, in every group, and in the scheduler:

            - optimizer.load_state_dict(saved)
            + optimizer.load_state_dict(saved)
            + for group in optimizer.param_groups:
            +     group["lr"] = group["initial_lr"] = lr
            + scheduler.base_lrs = [lr for _ in optimizer.param_groups]

        Print the learning rate after the resume. Passing `lr=` to the constructor before loading does not help, and
        neither does a lower loss scale or more clipping.

    Proof:
        The journal shows the learning rate rising fivefold or more in one step, and the same steps with the learning
        rate before the jump stay finite.
    """
    jump = rate_jump(case)
    if jump is None:
        return None
    step, before, after = jump
    trial = case.lab.rate("rate_before", "the learning rate before the jump", lambda s, lr: before if s >= step else lr)
    if trial.finite is False:
        case.refute("resume_lr_jump", trial, "the learning rate before the jump does not help")
        return None
    return Claim(
        "tried",
        f"the learning rate jumped from {before:.4g} to {after:.4g} at step {step:,}",
        (),
        history=(f"the learning rate jumped from {before:.4g} to {after:.4g} at step {step:,}",),
        trial=trial,
        shows="with the learning rate before the jump the same steps stay finite",
        help="if a state was restored there, set the learning rate again after load_state_dict in every param group "
        "(and the scheduler's base_lrs), or do not restore the scheduler; if a schedule jumps there, slow it down",
    )


def rate_jump(case: Case) -> tuple[int, float, float] | None:
    """The step at which the learning rate rose fivefold in one step among the recent ones, and both learning rates. A
    warm-up is no jump."""
    records = [record for record in case.history if record.lr and record.lr[0] > 0]
    rates = [(record.step, record.lr[0]) for record in records]
    if case.incident.lr:
        rates.append((case.incident.step, case.incident.lr[0]))
    for i in range(len(rates) - 1, 1, -1):
        earlier, before, after = rates[i - 2][1], rates[i - 1][1], rates[i][1]
        rising = earlier < before or (i + 1 < len(rates) and rates[i + 1][1] > after)  # a warm-up keeps rising
        if after / before >= 5 and not rising:
            return rates[i][0], before, after
    return None


@rule("grad_norm_overflow")
def grad_norm_overflow(case: Case) -> Claim | None:
    """The norm of finite gradients overflowed.

    Every gradient is finite, but the sum of their squares is not, so their norm is Inf. `clip_grad_norm_` then
    multiplies every gradient by 1/Inf = 0: the update vanishes, no number is NaN, and nothing is learned any more. Adam
    squares each gradient for its second moment, with the same end: once that is Inf, the weight never moves again.

    Example:
        import torch

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = [(torch.randn(8, 4), unit) for unit in (1.0, 1.0, 1e13)]  # the last one in another unit

        def clip(optimizer, args, kwargs):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        optimizer.register_step_pre_hook(clip)

        def loss_fn(batch):
            x, unit = batch
            return (model(x) * unit).square().mean()

    Why:
        A norm squares first: 1e20² = 1e40 is above 3.4e38, the end of float32. The norm of float16 gradients must fit
        into 65504: a few thousand each are enough in a large layer.

    Fix:
        Bring loss and targets to a sensible scale: gradients of 1e19 are never intended.

            - loss = (pressure_in_pascal - target).square().mean()
            + loss = ((pressure_in_pascal - target) / 1e5).square().mean()

        For half-precision gradients take the norm in float32, as the guard does. `error_if_nonfinite=True` in
        `clip_grad_norm_` at least raises an error. Clipping by value (`clip_grad_value_`) is finite and changes
        the direction. Where nothing clips, the guard applies such a step: finite gradients alone are not a fault.

    Proof:
        Every gradient is finite, and their norm, computed again with a scale taken out, is a finite number too large
        for the dtype: a measurement. Or: the optimizer multiplied a finite gradient by itself, and the exact square is
        beyond the dtype.
    """
    finding = next((f for f in case.incident.findings if f.kind == "grad_norm"), None)
    squared = None if finding is not None else _largest_squared(case)
    if finding is None and squared is None:
        return None
    slower = case.lab.rate(
        "tenth_of_rate", "a tenth of the learning rate from an older state on", lambda _, lr: lr / 10
    )
    messenger = case.growth >= _GROWTH and case.lab.weights_diverged() and slower.finite
    if squared is not None:
        name, largest, limit = squared
        return Claim(
            "hint" if messenger else "measured",
            f"a finite gradient of {largest:.3g} overflows when the optimizer squares it",
            (
                f"the gradient of {name} reaches {largest:.4g}; its square, {largest**2:.3g}, is beyond {limit:.3g}",
                "a second moment that is Inf divides every later update to 0: the weight would never move again",
            ),
            help="bring loss and targets to a sensible scale (gradients above 1e19 are never intended), or clip the "
            "gradients (max_grad_norm=1.0)",
        )
    assert finding is not None
    return Claim(
        "hint" if messenger else "measured",
        "every gradient is finite, but their norm overflows: clipping would silently zero the update",
        (finding.note,),
        help="bring loss and targets to a sensible scale (gradients above 1e19 are never intended), or take the norm "
        "in float32 for half-precision gradients",
    )


_SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum", "max_exp_avg_sq")


def _largest_squared(case: Case) -> tuple[str, float, float] | None:
    """The parameter whose finite gradient overflowed as a square in the optimizer, its size, and the dtype's limit."""
    import torch

    made = [f.name for f in case.incident.findings if f.kind == "optimizer_state"]
    if case.phase != "optimizer" or case.made != "inf" or case.half:
        return None
    if not any(name.startswith(tuple(f"{key} of " for key in _SECOND_MOMENTS)) for name in made):
        return None
    sizes = {n: float(g.detach().abs().max()) for n, g in case.failed.gradients.items() if g.numel()}
    if not sizes or not all(math.isfinite(size) for size in sizes.values()):
        return None
    name = max(sizes, key=lambda n: sizes[n])
    limit = float(torch.finfo(case.failed.gradients[name].dtype).max)
    return (name, sizes[name], limit) if sizes[name] ** 2 > limit else None


@rule("exploding_gradient")
def exploding_gradient(case: Case) -> Claim | None:
    """The gradients grew step by step until they overflowed.

    The forward pass is bounded and the loss looks normal, while the gradient norm grows by orders of magnitude:
    backward multiplies repeatedly by a factor above 1. Long unrolls, straight-through estimators and chaotic
    simulators do that.

    Example:
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(6, 6, bias=False)
        torch.nn.init.eye_(model.weight).data.mul_(1.6)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
        batches = [(torch.randn(3, 6), rounds) for rounds in (4, 8, 16, 32, 64, 256)]  # a curriculum of lengths

        def loss_fn(batch):
            state, rounds = batch
            for _ in range(rounds):
                new = model(state)
                state = new + (new.clamp(-1, 1) - new).detach()  # straight through: clamped, with a slope of 1
            return state.square().mean()

    Why:
        The gradient at the first of T rounds is a product of T Jacobians. With a factor of 1.6 that is 1.6^256 =
        1e52, and float32 ends at 3.4e38, although no activation ever exceeds 1.

    Fix:
        Bound the factor of a round (tanh, normalisation, a spectral norm), or cut the unroll:

            - state = cell(state)
            + state = cell(state.detach() if t % 32 == 0 else state)

        `max_grad_norm=1.0` keeps finite gradients small, and is the right first measure. It cannot help once they are
        Inf: Inf / Inf is NaN. A lower learning rate does not help, the weights hardly moved.

    Proof:
        The gradient norm of the last steps grew by a factor of 1,000 or more while the loss stayed in its range, and
        a tenth of the learning rate does not help: so the learning rate is not the cause.
    """
    if case.phase != "backward" or case.made not in ("inf", "nan"):
        return None
    if case.op in ("div", "rsqrt", "reciprocal", "log"):
        return None
    return _through_a_loop(case) or _over_the_steps(case)


@rule("bad_initialisation")
def bad_initialisation(case: Case) -> Claim | None:
    """The first forward pass is already far outside any useful range.

    The weights were drawn far too large (a standard deviation of 20 instead of 0.02, an embedding without scaling),
    so that each layer multiplies the signal. The very first forward pass overflows. Nothing has been learned and
    nothing has been broken yet.

    Example:
        import torch
        from torch import nn

        torch.manual_seed(0)
        layers = [nn.Linear(32, 32) for _ in range(24)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=20.0)  # 0.02 was meant
        model = nn.Sequential(*layers)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batches = [torch.randn(4, 32)]

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        A layer with weights of standard deviation s and n inputs multiplies the size of the signal by about s·√n.
        With s = 20 and n = 32 that is 113 per layer, and 113^19 exceeds float32.

    Fix:
        Aim at a gain near 1:

            - nn.init.normal_(layer.weight, std=20.0)
            + nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

        A lower learning rate cannot help, since the first forward pass has not used it. Gradient clipping cannot
        either. A normalisation after each layer hides it, but leaves weights that the optimizer can hardly move.

    Proof:
        No step was applied before, the named weights multiply the scale of their input by more than 4, and with those
        weights divided by their gain the same step is finite.
    """
    if not case.first_step or case.phase not in ("forward", "backward") or case.half or case.trace is None:
        return None
    if case.op in ("div", "log", "sqrt", "rsqrt", "reciprocal", "pow", "acos", "asin") and case.made == "nan":
        return None  # at a pole or outside a domain: no question of size
    suspects = _oversized(case)
    if not suspects or _is_parameter_itself(case):
        return None
    name, gain = max(suspects.items(), key=lambda item: item[1])

    def rescale() -> None:
        for key, factor in suspects.items():
            case.failed.parameters[key].div_(factor)

    trial = case.lab.with_weights("rescaled", "the oversized weights divided by their gain", rescale)
    facts = [f"{len(suspects)} weights multiply the scale of their input by more than 4; {name} by {gain:.3g}"]
    grown = [f.absmax for f in case.location.frames if f.absmax is not None]
    if len(grown) > 2:
        facts.append("magnitudes on the way: " + " -> ".join(f"{value:.3g}" for value in grown[-5:]))
    if trial.finite is False:
        case.refute("bad_initialisation", trial, "the step stays bad with rescaled weights")
        return None
    return Claim(
        "tried",
        f"the weights are initialised far too large: {name} multiplies by about {gain:.3g}",
        tuple(facts),
        trial=trial,
        shows="with those weights rescaled the step is finite",
        help="initialise with a gain near 1 (nn.init.kaiming_normal_, std = 1/√fan_in)",
    )


def _is_parameter_itself(case: Case) -> bool:
    """Whether an exponential was given a parameter as it is (a log temperature): it multiplies nothing before that."""
    from nantrap.locate.storage import share_memory

    if case.op not in ("exp", "expm1", "exp2", "cosh", "sinh") or not case.inputs:
        return False
    argument = case.inputs[0]
    same = [p.detach() for p in case.failed.parameters.values() if p.shape == argument.shape]
    return any(share_memory(p, argument) or bool((p == argument).all()) for p in same)


def _oversized(case: Case) -> dict[str, float]:
    """Weights that multiply the scale of their input by more than 4, and by how much."""
    from nantrap.locate.torch_private import parameters_of

    owners = {
        f"{name}.{key}" if name else key: type(module).__name__
        for name, module in case.failed.root.named_modules()
        for key in parameters_of(module)
    }
    found = {}
    for name, parameter in case.failed.parameters.items():
        if not (parameter.is_floating_point() or parameter.is_complex()) or not parameter.numel():
            continue
        gain = _gain(parameter.detach(), owners.get(name, ""))
        if math.isfinite(gain) and gain > 4:
            found[name] = gain
    return found


def _gain(weight: Tensor, owner: str) -> float:
    """How a weight scales what it multiplies: std · √fan_in for a matrix, its magnitude for a vector or a table."""
    magnitude = weight.abs().double()
    typical = float(magnitude.square().mean().sqrt())
    if weight.dim() < 2 or owner == "Embedding":
        return typical
    fan_in = weight[0].numel()
    if owner not in _KNOWN_LAYOUT:  # a parameter that the user made: either side may be the input
        fan_in = max(fan_in, weight.numel() // weight.shape[-1])
    return typical * math.sqrt(fan_in)


def _through_a_loop(case: Case) -> Claim | None:
    """The gradient is multiplied in each round of a loop on its way back, inside this one step."""
    if case.trace is None or case.capture is None or case.half:
        return None
    rounds = growing_rounds(case.trace, case.capture.op)
    if rounds is None or len(rounds.values) < _FEWEST_ROUNDS:
        return None
    forward = [
        op.absmax for op in case.trace.ops if op.phase == "forward" and op.absmax and op.place == rounds.op.place
    ]
    bounded = bool(forward) and max(forward) < 1e3 * max(1.0, min(forward))
    shown = " -> ".join(f"{value:.3g}" for value in rounds.values[-5:])
    facts = [f"{rounds.op.node} at one line gave gradients of {shown} -> Inf within one backward pass"]
    if bounded:
        facts.append(f"the values at that line stay below {max(forward):.3g} in the forward pass: only the slope grows")
    return Claim(
        "measured",
        f"the gradient was multiplied by about {rounds.factor:.3g} in each of {len(rounds.values)} rounds of a loop",
        tuple(facts),
        help="bound the factor of a round (tanh, a norm, a spectral bound), run fewer rounds, or cut the unroll "
        "(state.detach() every few rounds); clipping cannot help once a gradient is Inf",
    )


def _over_the_steps(case: Case) -> Claim | None:
    norms = [record.grad_norm for record in case.history.applied()[-8:]]
    if len(norms) < 2 or not norms[0] > 0 or norms[-1] / min(norms) < 1e3:
        return None
    shown = " -> ".join(f"{value:.3g}" for value in norms[-5:])
    losses = [record.loss for record in case.history.applied()[-8:]]
    trial = case.lab.rate("tenth_of_rate", "a tenth of the learning rate from an older state on", lambda _, lr: lr / 10)
    facts = ("a tenth of the learning rate does not help",) if trial.finite is False else ()
    bounded = case.loss_growth < _GROWTH
    return Claim(
        "measured" if trial.finite is False and bounded else "hint",
        f"the gradients exploded in {case.place}" + (" while the loss stayed in its range" if bounded else ""),
        facts,
        history=(
            f"the gradient norm went {shown} -> {case.incident.grad_norm:.3g}",
            f"the loss was between {min(losses):.3g} and {max(losses):.3g}",
        ),
        help=f"clip the gradients (max_grad_norm=1.0), and bound what {case.place} multiplies in each round",
    )


@rule("dead_training")
def dead_training(case: Case) -> Claim | None:
    """Nothing is learned: the updates are exactly zero.

    The run looks healthy and learns nothing. No gradient reaches the parameters (a `detach`, a frozen layer, a dead
    ReLU), or the update is 0: an Inf in Adam's second moment divides every later update to nothing, a clipped gradient
    of infinite norm is multiplied by 0.

    Example:
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [torch.randn(4, 3) for _ in range(12)]
        batches[11][0] = float("nan")  # the run stopped learning long before this

        def loss_fn(batch):
            return (model(batch).detach() + 0 * model.weight.sum()).square().mean()  # no gradient reaches the model

    Why:
        A gradient of 0 is a valid gradient. Nothing raises, the loss is finite, and the curves are flat.

    Fix:
        Find where the gradient ends:

            - loss = (model(x).detach() - y).square().mean()
            + loss = (model(x) - y).square().mean()

        For an Inf in the optimizer's state: restore an older state, or `optimizer.state.clear()`. A higher learning
        rate does not help, 0 times anything is 0.

    Proof:
        The gradient norm was exactly 0 in the last eight steps or more, while the loss was finite; the first of those
        steps is named. It is listed below the cause of the failure, since it does not cause a NaN.
    """
    applied = case.history.applied()
    still = [record for record in applied[-_STILL:] if record.grad_norm == 0]
    if len(applied) < _STILL or len(still) < _STILL:
        return None
    first, count = applied[-1].step, 0
    for record in reversed(applied):
        if record.grad_norm != 0:
            break
        first, count = record.step, count + 1
    return Claim(
        "hint",
        f"nothing has been learned since step {first:,}: every gradient is exactly zero",
        (),
        history=(f"the gradient norm is exactly 0 in each of the last {count:,} steps",),
        help="look for a detach, a frozen layer or a term without a graph between the loss and the parameters",
    )
