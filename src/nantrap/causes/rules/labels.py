"""NT1xx: targets that the loss does not accept, since they are out of its range or longer than their input.

They are finite, and PyTorch does not check them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nantrap.causes.claim import Claim, Has, Remedy, rule
from nantrap.causes.facts import in_words, integer_valued, ordinary_tensors
from nantrap.causes.usual import were_shares

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.incident import Trial
    from nantrap.locate.trace import Capture, Trace

_NEVER_NEGATIVE = "binary cross-entropy with targets in [0, 1] is never negative"
_LOGARITHMS = (
    "aten.log", "aten.log1p", "aten.log2", "aten._log_softmax", "aten.log_sigmoid_forward", "aten.softplus",
)  # fmt: skip
_STEPS_BACK = 6
"""How many operations lie between a label and the logarithm of a cross-entropy that is written by hand, at most."""
_LED_HERE = 3.0
"""A loss that grew by this much since the recent steps began may have been led here by its labels."""
_MOSTLY = 0.5
"""The part of a tensor that must be inside the range for the rest to be a mistake."""
_WANTS_POSITIVE = ("pow", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "xlogy", "xlog1py")


@rule("label_out_of_range")
def label_out_of_range(case: Case) -> Claim | None:
    """A target lies outside the range its loss accepts."""
    for call in case.calls_of("aten.binary_cross_entropy"):
        target = call.args[1]
        low, high = float(target.min()), float(target.max())
        if low < 0 or high > 1:
            outside = float(((target < 0) | (target > 1)).sum())
            return _label(case, call, target, f"[{low:g}, {high:g}]", "[0, 1]", outside)
    for call in case.calls_of("aten.xlogy", "aten.kl_div"):
        target = call.args[1]  # of kl_div its targets; xlogy(y, y) has them twice, and any other xlogy has a domain
        own = call.op.name == "aten.kl_div" or _same_values(call.args[0], target)
        if own and float(target.min()) < 0:
            outside = float((target < 0).sum())
            low, high = float(target.min()), float(target.max())
            return _label(case, call, target, f"[{low:g}, {high:g}]", "[0, inf)", outside)
    return _outside_the_domain(case) or _negative_label(case) or _handmade_cross_entropy(case)


def _outside_the_domain(case: Case) -> Claim | None:
    """A label of 255 makes 1 - p negative, and a power or logarithm of that is NaN: tried with labels in [0, 1]."""
    if case.phase != "forward" or case.made != "nan" or case.op not in _WANTS_POSITIVE or not case.inputs:
        return None
    argument = case.inputs[-1 if case.op.startswith("xlog") else 0]
    below = int((argument < (-1 if case.op in ("log1p", "xlog1py") else 0)).sum())
    if not below or not case.failure.repeatable or case.trace is None or case.capture is None:
        return None
    for path, tensor in ordinary_tensors(case.failure.batch):
        if not tensor.numel() or _same_values(argument, tensor):  # a function of the target itself: its domain says all
            continue
        if not case.trace.reads_directly(case.capture.op, tensor):  # what only the model reads is no label
            continue
        if not integer_valued(tensor) and case.trace.is_given_to_a_layer(tensor):  # an input, a coordinate
            continue
        outside = tensor[(tensor < 0) | (tensor > 1)].unique()
        flags = integer_valued(tensor) and outside.numel() <= 2
        suspect = _are_flags_but_a_few(tensor, outside) if flags else _are_shares_but_a_few(case, path, tensor, outside)
        if not suspect:
            continue
        shown, plural = in_words(path), "s" * (below > 1)
        kind = "labels of 0 and 1" if flags else "shares from 0 to 1"
        values = _in_words(outside if outside.numel() <= 2 else tensor)
        low, high = (0, 1) if flags else (0.01, 0.99)
        trial = case.lab.with_tensor(path, f"{shown}.clamp({low}, {high})", tensor, tensor.clamp(low, high))
        if trial.finite:
            return Claim(
                "tried",
                f"{shown} holds {values}, and the loss is written for {kind}",
                (
                    f"{case.location.op} was given {below:,} negative value{plural}, for which it is not defined",
                    f"{shown} holds {kind}, and {values}" if flags else f"{shown} holds {values}",
                ),
                trial=trial,
                shows=f"with {shown} brought into [0, 1] the step is finite",
                remedies=(Remedy(trial.change, trial),),
                help=f"leave out the places where {shown} is {values} (an ignore value?): a mask"
                if flags
                else f"bring {shown} into [0, 1] where it is loaded (percent need / 100)",
            )
    return None


def _in_words(values: Tensor) -> str:
    """`-1 and 255`, and for more than two of them `values from -1 to 255`."""
    if values.numel() <= 2:
        return " and ".join(f"{float(value):g}" for value in values)
    return f"values from {float(values.min()):g} to {float(values.max()):g}"


def _are_flags_but_a_few(tensor: Tensor, outside: Tensor) -> bool:
    """Whether most whole numbers of a tensor are 0 and 1, and both occur: ones alone may be counts or amounts."""
    zeros, ones = tensor == 0, tensor == 1
    both = bool(zeros.any()) and bool(ones.any())
    return both and bool(outside.numel()) and float((zeros | ones).float().mean()) >= _MOSTLY


def _are_shares_but_a_few(case: Case, path: str, tensor: Tensor, outside: Tensor) -> bool:
    """Whether a tensor held shares from 0 to 1 in the batches before, or else holds mostly such."""
    most = float(tensor.min()) >= 0 and float((tensor <= 1).double().mean()) >= _MOSTLY
    return bool(outside.numel()) and (were_shares(case, path) or (most and not integer_valued(tensor)))


def _negative_label(case: Case) -> Claim | None:
    """A missing value coded as -1 or -999 among counts: lgamma has no value there."""
    if case.phase != "forward" or case.op not in ("lgamma", "digamma") or not case.inputs:
        return None
    if not case.failure.repeatable or case.output is None or case.output.shape != case.inputs[0].shape:
        return None
    bad = ~case.output.detach().isfinite()
    given = case.inputs[0][bad]
    for path, tensor in ordinary_tensors(case.failure.batch):
        if not tensor.numel() or tensor.numel() != bad.numel() or not integer_valued(tensor):
            continue
        negative = tensor[tensor < 0].unique()
        same = bool((tensor.detach().flatten()[bad.flatten()] < 0).all())
        if not 0 < negative.numel() <= 2 or not same or float((tensor >= 0).float().mean()) < _MOSTLY:
            continue
        shown = in_words(path)
        values = _in_words(negative)
        trial = case.lab.with_tensor(path, f"{shown}.clamp(min=0)", tensor, tensor.clamp(min=0))
        if trial.finite:
            return Claim(
                "tried",
                f"{shown} holds {values} among values of 0 and above, and the loss is written for those",
                (f"{case.location.op} was given {float(given.max()):g} where {shown} is negative",),
                trial=trial,
                shows=f"with {shown} clamped to 0 and above the step is finite",
                remedies=(Remedy(trial.change, trial),),
                help=f"leave out the places where {shown} is {values} (a missing value?) with a mask",
            )
    return None


def _handmade_cross_entropy(case: Case) -> Claim | None:
    """A loss that should be positive fell below zero, and a batch holds labels above 1: y·log p + (1-y)·log(1-p)."""
    losses = [record.loss for record in case.run.history.applied()]
    if len(losses) < 2 or not losses[-1] < 0 or not losses[-1] < losses[0] or case.growth < _LED_HERE:
        return None
    for path, tensor in ordinary_tensors(case.failure.batch):
        if integer_valued(tensor) and tensor.numel() and float(tensor.max()) > 1 and float(tensor.min()) >= 0:
            weighs = _weighed_by(case, tensor)
            trial = _with_clean_targets(case, tensor, "[0, 1]") if weighs else None
            if trial is not None and trial.finite is False:
                case.refute("label_out_of_range", trial, "the step is as bad with targets in [0, 1]")
                continue
            shown, high = in_words(path), f"{float(tensor.max()):g}"
            return Claim(
                "tried" if weighs else "hint",
                f"{shown} holds values up to {high}, and the loss fell below zero",
                (f"{shown} reaches {high}" + (f", and the loss multiplies it by {weighs}" if weighs else ""),),
                history=(f"the loss fell to {losses[-1]:.4g}; {_NEVER_NEGATIVE}",),
                trial=trial,
                shows=f"with targets in [0, 1] {_what_ran(case, trial)} are finite",
                remedies=() if trial is None else (Remedy(trial.change, trial),),
                help=f"map {shown} to [0, 1] before the loss"
                if weighs
                else f"if this is a cross-entropy, map {shown} to [0, 1] before the loss",
                contests=bool(weighs),
            )
    return None


def _weighed_by(case: Case, labels: Tensor) -> str:
    """What the step multiplies these labels by, where that makes it a cross-entropy written by hand; else "".

    y·log p + (1 - y)·log(1 - p), or softplus(z) - y·z, or max(z, 0) - y·z + log(1 + exp(-|z|)).
    """
    if case.trace is None or not case.failure.repeatable:
        return ""
    ops = [op for op in case.trace.ops if op.phase == "forward"]
    logarithms = {op.index for op in ops if op.name in _LOGARITHMS}
    behind = set().union(*(_ancestors(case.trace, index) for index in logarithms))
    for op in ops:
        direct = any(one.index in logarithms for side in range(2) for one in case.source_ops(op, side)[:3])
        if op.name != "aten.mul" or not (direct or behind & set(op.sources)):
            continue
        operands = case.operands_of(op.index)
        if operands is not None and any(_same_values(labels, factor) for factor in operands.inputs()):
            return "a logarithm" if direct else "what a logarithm is taken of"
    return ""


def _ancestors(trace: Trace, index: int) -> set[int]:
    """The operations that lead to one, a few steps back."""
    found: set[int] = set()
    last = {index}
    for _ in range(_STEPS_BACK):
        last = {source for one in last for source in trace.ops[one].sources if source >= 0} - found
        found |= last
    return found


def _label(case: Case, call: Capture, target: Tensor, found: str, allowed: str, count: float) -> Claim | None:
    """Targets outside the range: proven only if the step, or the steps before it, are finite with targets inside it."""
    losses = [record.loss for record in case.run.history.applied()]
    below_zero = bool(losses) and losses[-1] < 0
    at_origin = case.capture is call
    trial = _with_clean_targets(case, target, allowed)
    if trial is not None and trial.finite is False:
        case.refute("label_out_of_range", trial, f"the step is as bad with targets in {allowed}")
        return None
    if trial is None and not at_origin and not below_zero:
        return None  # targets a little outside train well; nothing ties them to this failure
    has: Has = "tried" if case.failure.repeatable or not at_origin else "measured"
    if trial is not None and trial.finite is None and not at_origin and not below_zero:
        has = "hint"  # the failed step is as bad with clean targets; whether they led to it could not be tried
    return Claim(
        has,
        f"targets lie in {found}, {call.op.name.removeprefix('aten.')} accepts {allowed}",
        (f"{call.op.name} was given {count:,.0f} target{'s' * (count > 1)} outside {allowed}: {found}",),
        history=(f"the loss had fallen to {losses[-1]:.4g}; {_NEVER_NEGATIVE}",)
        if below_zero and call.op.name.startswith("aten.binary_cross_entropy")
        else (),
        trial=trial,
        shows=f"with targets in {allowed} {_what_ran(case, trial)} are finite",
        remedies=() if trial is None else (Remedy(trial.change, trial),),
        help=f"map the targets to {allowed} (a mask read as 0..255 needs / 255; an ignore value needs a mask)",
    )


def _with_clean_targets(case: Case, target: Tensor, allowed: str) -> Trial | None:
    """The failed step, or if that does not suffice the steps that led to it, with the targets clamped."""
    from nantrap.locate.batch import with_tensor

    if not case.failure.repeatable:
        return None
    path = next((path for path, tensor in ordinary_tensors(case.failure.batch) if _same_values(tensor, target)), None)
    if path is None:
        return None
    high = 1.0 if allowed == "[0, 1]" else None

    def clean(batch: Any) -> Any:
        tensor = dict(ordinary_tensors(batch)).get(path)
        return batch if tensor is None else with_tensor(batch, tensor, tensor.clamp(0, high))

    trial = case.lab.with_batch("clean_targets", f"targets clamped to {allowed}", clean(case.failure.batch))
    if trial.finite:
        return trial
    steps = case.lab.steps_with("clean_steps", f"targets clamped to {allowed} in the steps since an older state", clean)
    led_here = case.loss_growth >= _LED_HERE or any(record.loss < 0 for record in case.run.history.applied())
    return steps if steps.finite is not None or led_here else trial


def _what_ran(case: Case, trial: Trial | None) -> str:
    return case.lab.steps if trial is not None and trial.harness == "steps" else "the same steps"


def _same_values(tensor: Tensor, target: Tensor) -> bool:
    """Whether the batch's tensor is what the loss was given, possibly reshaped or cast."""
    if tensor.numel() != target.numel() or not tensor.numel():
        return False
    return bool((tensor.detach().flatten().to(target.dtype) == target.detach().flatten()).all())


@rule("ctc_infeasible_alignment")
def ctc_infeasible_alignment(case: Case) -> Claim | None:
    """A CTC target does not fit into its input."""
    for call in case.calls_of("aten._ctc_loss"):
        if len(call.args) >= 4:
            bad = _infeasible(*call.args[:4])
            if bad and not bool(call.outputs[0].isfinite().all()):
                sample, needed, given = bad[0]
                where = ", ".join(f"sample {s} needs {n} of {g} frames" for s, n, g in bad[:4])
                these = "this sample" if len(bad) == 1 else "these samples"
                return Claim(
                    "measured",
                    f"sample {sample} needs {needed} frames for its target, the input has {given}",
                    (
                        f"targets that are too long for their input: {len(bad)} of {call.args[0].shape[1]} ({where})",
                        "a target of length L with r repeated neighbours needs at least L + r input frames",
                    ),
                    remedies=(case.remedy("ctc", _with_safe_ctc(case, call), "ctc_loss"),),
                    help=f"drop {these} from the data",
                    note="nantrap.ops.ctc_loss leaves such samples out and counts them; zero_infinity=True hides them",
                )
    return None


def _with_safe_ctc(case: Case, call: Capture) -> Trial | None:
    place = call.op.place
    return case.lab.replaced(place.source(), "ctc") if place is not None and case.failure.repeatable else None


def _infeasible(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
) -> list[tuple[int, int, int]]:
    """Samples whose target does not fit: number, frames needed (repeats need a blank between them), frames given."""
    inputs, lengths = [int(n) for n in input_lengths], [int(n) for n in target_lengths]
    bad, start = [], 0
    for sample, length in enumerate(lengths):
        if targets.dim() == 1:
            labels = targets[start : start + length]
            start += length
        else:
            labels = targets[sample, :length]
        repeats = int((labels[1:] == labels[:-1]).sum()) if length > 1 else 0
        if length + repeats > inputs[sample]:
            bad.append((sample, length + repeats, inputs[sample]))
    return bad
