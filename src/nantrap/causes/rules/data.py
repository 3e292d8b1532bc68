"""NT1xx: the batch, and reductions over nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nantrap.causes.claim import Claim
from nantrap.causes.facts import EXPONENTIALS, IN_LOG_SPACE, describe, in_words, share, where_text
from nantrap.causes.registry import rule
from nantrap.causes.usual import flags_before, in_usual_range, unusual_inputs
from nantrap.incident import Trial

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.samples import Samples

_ABSURD = 1e12
_ADDED_OVER_MASKS = ("sum", "count_nonzero", "mean")
_AVERAGES = (
    "mean", "nanmean", "median", "nanmedian", "var", "std", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy", "kl_div", "div", "norm", "linalg_vector_norm", "quantile", "soft_margin_loss",
)  # fmt: skip
_FLAGS = (
    "gt", "ge", "lt", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bitwise_not",
    "bitwise_and", "isfinite",
    "ones_like", "zeros_like", "ones", "zeros", "one_hot", "scatter", "arange", "count_nonzero", "masked_fill", "where",
    "rsub", "new_ones", "new_zeros", "full",
)  # fmt: skip
_SUMS = ("sum", "mean", "mm", "bmm", "dot", "mv", "matmul")
_MOVES = (
    "_to_copy", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "transpose", "t", "permute",
    "slice", "select", "clone", "alias", "detach", "mul",
)  # fmt: skip
_SPREADS = ("std", "var", "linalg_vector_norm", "sub", "amax", "max", "sqrt", "norm", "native_layer_norm", "abs")


@rule("bad_input_data")
def bad_input_data(case: Case) -> Claim | None:
    """The batch holds values that no model can train on.

    The batch was already NaN or Inf before the model saw it, or it holds finite nonsense: a sentinel such as -9999 or
    1e30, a pressure in pascal where bar was meant. Nothing in the model is at fault. One such sample is enough to
    make the loss, every gradient and, one update later, every weight non-finite.

    Example:
        import torch

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [torch.randn(8, 4) for _ in range(3)]
        batches[2][5, 1] = float("nan")  # an empty cell of the table

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        NaN absorbs: NaN + x, NaN · x, and even NaN · 0 are NaN. A matrix product mixes the columns of a sample, the
        mean of the loss mixes the samples, and backward carries it into every weight that took part.

    Fix:
        Find where the value is made (an empty cell, log of a zero count, a division in the augmentation) and repair
        or drop it there:

            - x = torch.tensor(row)
            + x = torch.tensor(row)
            + if not x.isfinite().all():
            +     raise ValueError(f"row {index}: {x}")

        What does not help: `torch.isnan(x).any()` misses Inf; use `isfinite`. `x.clamp(-10, 10)` passes NaN through.
        `nan_to_num(x)` turns a missing value into a measured 0 and Inf into 3.4e38, which overflows in the next
        product. `nan_to_num(loss)` leaves the gradients unchanged.

    Proof:
        The tensor is read before the forward pass: its path in the batch, the samples and the counts are a
        measurement. For values that are finite but absurd, the step is run again without the suspect samples and must
        then be finite.
    """
    external = case.external
    if external is None and case.capture is None and (given_bad := case.bad_model_input()) is not None:
        name, tensor = given_bad
        return Claim(
            "hint",
            f"the model's input is non-finite before its forward pass: {name}",
            (f"{name} {describe(tensor)}",),
            help=f"clean or drop the sample where {name} is made",
        )
    if external is None or external.kind != "batch":
        return _sentinel(case)
    finding = next((f for f in case.location.findings if f.kind == "batch"), None)
    samples = finding.samples if finding else ()
    noun = "sample" if len(samples) == 1 else "samples"
    which = f", {noun} {', '.join(map(str, samples[:6]))}" if samples else ""
    trial: Trial | None = None
    if case.location.samples.rest_is_finite:
        trial = case.lab.without_samples(case.location.samples.guilty, case.location.samples.size or 0)
    given = case.was_given(external.tensor)
    if (given == "argument" and case.loop_is_finite) or case.made_from_finite(external.tensor):
        case.location.notes.append(
            f"{external.name} of the model is non-finite, though what the loop took from its loader is finite: the "
            "code between the two made it"
        )
        return None
    what = {
        "loader": "the batch is non-finite before the forward pass"
        + ("" if external.name == "batch" else f": {external.name}"),
        "argument": f"the model's input is non-finite before its forward pass: {external.name}",
    }.get(given, f"a tensor that the loss reads without a gradient is non-finite: {external.name}")
    return Claim(
        "measured" if given == "loader" else "hint",
        what,
        (f"{external.name} {describe(external.tensor)}{' before the forward pass' if given else ''}{which}",),
        trial=trial,
        shows="without those samples the step is finite",
        help=f"clean or drop the sample where {external.name} is made",
    )


def _sentinel(case: Case) -> Claim | None:
    """A value that stands for a missing one (1e30, the largest float): finite, and no measurement."""
    found = largest_input(case)
    if found is None or not _is_sentinel(found.tensor, found.value):
        return None
    targets = [call.args[1] for call in case.calls_of("aten.binary_cross_entropy")]
    if any(target.shape == found.tensor.shape for target in targets):
        return None  # that loss has a range of its own: see label_out_of_range
    return out_of_range(
        case,
        found,
        f"the batch holds nonsense: {found.name} reaches {found.value:.3g}",
        "replace the sentinel or missing-value code before the data reach the model",
    )


def _is_sentinel(tensor: Tensor, value: float) -> bool:
    """Whether a value is one that programs write for "missing", rather than a measurement in another scale."""
    if value >= 1e29:
        return True
    whole = value == round(value) and int(value) % 100 in (0, 99)
    return value >= 1e15 and (whole and int((tensor.abs() == value).sum()) > 1)


@dataclass(frozen=True, slots=True)
class Extreme:
    """The largest value that came in from outside: its tensor, name and magnitude."""

    tensor: Tensor
    name: str
    value: float


def out_of_range(case: Case, found: Extreme, summary: str, advice: str) -> Claim | None:
    """A finite value that overflows: proven if the step is finite without its samples, or with the batch rescaled."""
    facts = [f"|{found.name}| reaches {found.value:.4g}, though it is finite"]
    samples = case.location.samples
    if not case.failed.repeatable:
        return Claim("hint", summary, tuple(facts), help=advice) if case.growth < 8 else None
    trial = None
    shows = ""
    if samples.guilty and samples.rest_is_finite:
        which = ", ".join(map(str, samples.guilty[:6]))
        plural = "s" * (len(samples.guilty) > 1)
        if _holds_extreme(found, samples):
            facts[0] = f"|{found.name}| reaches {found.value:.4g} in sample{plural} {which}, though it is finite"
        trial = case.lab.without_samples(samples.guilty, samples.size or 0)
        shows = f"without {'those samples' if plural else 'that sample'} the step is finite"
    if trial is None or not trial.finite:
        trial = case.lab.with_batch("rescaled_batch", "the batch in the usual scale", rescaled(case.failed.batch))
        shows = "with the batch brought to the usual scale the step is finite"
    if trial.finite is False:
        return None
    return Claim("tried", summary, tuple(facts), trial=trial, shows=shows, help=advice)


def _holds_extreme(found: Extreme, samples: Samples) -> bool:
    """Whether the largest value lies in the guilty samples, where the tensor has samples."""
    if found.tensor.dim() == 0 or found.tensor.shape[0] != samples.size:
        return False
    return float(found.tensor[list(samples.guilty)].abs().max()) == found.value


def rescaled(batch: Any) -> Any:
    """The batch with values beyond 1e6 times the usual scale brought back to it."""
    import torch

    from nantrap.locate.storage import map_leaves

    def scale(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.numel():
            return leaf
        size = float(leaf.abs().max())
        return leaf / size if size > 1e6 else leaf

    return map_leaves(batch, scale)


def largest_input(case: Case) -> Extreme | None:
    """The largest value that came in from outside: from the batch, or in the two-line form from the model's inputs."""
    from nantrap.locate import tensors_of

    if case.made == "" or case.phase not in ("forward", "backward") or case.failed.norm_overflowed:
        return None
    given = list(tensors_of(case.failed.batch))
    if not case.failed.repeatable and case.failed.root_call is not None:
        given += list(tensors_of((case.failed.root_call.args, case.failed.root_call.kwargs)))
    if not case.failed.repeatable and case.phase == "forward" and case.location.module == "loss":
        given += [("a target of the loss", t) for t in case.inputs[1:]]
    worst: Extreme | None = None
    for path, tensor in given:
        if tensor.is_floating_point() and tensor.numel() and not _is_added_mask(tensor):
            value = float(tensor.detach().abs().max())
            if value < float("inf") and (worst is None or value > worst.value):
                worst = Extreme(tensor.detach(), in_words(path), value)
    return worst if worst is not None and worst.value >= _ABSURD else None


def _is_added_mask(tensor: Tensor) -> bool:
    """0 and one very negative number: a mask that is added to scores, not a measurement."""
    return float(tensor.detach().min()) < -1e4 and tensor.detach().unique().numel() <= 2


@rule("empty_reduction")
def empty_reduction(case: Case) -> Claim | None:
    """A mean or quotient was taken over zero elements.

    The batch held no valid token, no positive anchor, no labelled pixel, so the mean over them is 0/0. It is rare,
    which is why it appears after two days: one short sequence, one empty scene, one batch whose every label is
    `ignore_index`.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = [(torch.randn(4, 6), torch.tensor([0, 2, 1, 0])), (torch.randn(4, 6), torch.full((4,), -100))]

        def loss_fn(batch):
            x, labels = batch
            return nn.functional.cross_entropy(model(x), labels)  # every label of the second batch is ignored

    Why:
        The mean is a sum divided by a count, and with a count of 0 that is 0/0 = NaN. With `cross_entropy` the
        gradients are zero in that case, so the weights survive, but the logged loss, an average over the epoch, a
        scheduler that reads it and a sum with other terms do not.

    Fix:
        Say what the mean of nothing is: zero, with a zero gradient.

            - loss = nn.functional.cross_entropy(logits, labels)
            + loss = nantrap.ops.cross_entropy(logits, labels)

            - loss = (error * mask).sum() / mask.sum()
            + loss = nantrap.ops.masked_mean(error, mask)

        `mask.sum().clamp(min=1)` is right as well. `nan_to_num(loss)` is not: where the quotient is hand-made its
        derivative is NaN too. Returning 0.0, a constant, makes backward fail and other ranks wait.

    Proof:
        The operation was given an empty tensor, or only ignored labels, or a denominator that counts a mask and is
        exactly 0 under a numerator of 0: a measurement. The call is then replaced by its safe form at its own line,
        and the step must be finite.
    """
    capture = case.capture
    if capture is None or case.made != "nan" or case.phase != "forward":
        return None
    if case.op.startswith("nll_loss"):
        target, ignored = capture.args[1], capture.args[4]
        total = capture.outputs[1] if len(capture.outputs) > 1 else (target != ignored).sum()
        if bool((total == 0).all()):  # the weight by which the mean divides
            summary = "every label of the batch is ignored"
            text = f"all {target.numel():,} targets are {ignored} (ignored): the mean is 0/0"
            if bool((target != ignored).any()):
                summary = "every label of the batch has a class weight of 0"
                text = "the weights of all classes that occur are 0: the mean is 0/0"
            trial = case.try_replacement("cross_entropy", "nantrap.ops.cross_entropy")
            return _empty(case, summary, text, "nantrap.ops.cross_entropy(logits, labels)", trial)
    if case.inputs and all(t.numel() == 0 for t in case.inputs) and case.op.startswith(_AVERAGES):
        text = f"{capture.op.name} was given an empty tensor of shape {tuple(case.inputs[0].shape)}"
        return _empty(
            case,
            "a reduction over no element",
            text,
            "skip the term when nothing is selected, or nantrap.ops.masked_mean(x, mask)",
            None,
        )
    return _count_of_nothing(case)


def _count_of_nothing(case: Case) -> Claim | None:
    """0 / 0 where the denominator counted a mask that selects nothing."""
    capture = case.capture
    assert capture is not None
    if case.op not in ("div", "true_divide") or len(case.inputs) < 2 or case.output is None:
        return None
    numerator, denominator = case.inputs[0], case.inputs[1]
    if not bool((denominator == 0).any()):
        return None
    bad = ~case.output.isfinite()
    if not bool((numerator.expand_as(bad)[bad] == 0).all()):
        return None
    if not case.failed.repeatable and not capture.op.sources:
        return _perhaps_nothing(case, numerator, denominator)
    counted = _counted_by(case)
    if counted is None:
        return None
    return _empty(
        case,
        "a quotient over a count of zero",
        f"the denominator is exactly 0 in {share(denominator == 0)} and was made by {counted}, the numerator is 0 too",
        "nantrap.ops.masked_mean(x, mask), or divide by count.clamp(min=1)",
        case.try_replacement("div", "nantrap.ops.safe_divide"),
    )


def _perhaps_nothing(case: Case, numerator: Tensor, denominator: Tensor) -> Claim | None:
    """In the two-line form it is not known what made the two: one sum divided by another, both exactly 0."""
    if numerator.numel() != 1 or denominator.numel() != 1:
        return None
    return Claim(
        "hint",
        "a sum of 0 divided by a count of 0: nothing was selected",
        ("numerator and denominator are single numbers, both exactly 0; what made them was not seen",),
        help="nantrap.ops.masked_mean(x, mask), or divide by count.clamp(min=1)",
    )


def _counted_by(case: Case) -> str | None:
    """The operation that counted a mask to make the denominator: a sum over comparisons, flags or whole numbers."""
    assert case.capture is not None
    chain = case.source_ops(case.capture.op, 1)
    names = [op.name.removeprefix("aten.") for op in chain]
    position = next((i for i, name in enumerate(names) if name in (*_ADDED_OVER_MASKS, *_SPREADS)), None)
    if position is None or names[position] not in _ADDED_OVER_MASKS:
        return None
    behind = names[position + 1 :]
    from_outside = chain[-1].sources[:1] == (-1,) and all(name in _MOVES for name in behind)  # came with the batch
    made_here = any(name in _FLAGS for name in behind)
    if not from_outside and not made_here:
        return None
    kept = case.operands_of(chain[position].index)
    summed = kept.inputs()[0] if kept is not None and kept.inputs() else None
    if summed is not None and not _is_counted(case, summed.detach(), made_here=made_here):
        return None
    return names[position]


def _is_counted(case: Case, summed: Tensor, *, made_here: bool) -> bool:
    """Whether a sum over these values is a count: flags, or whole numbers. A sum that is 0 of measured values is none.

    A float tensor of zeros alone does not show it: a mask that selects nothing, or a blank image. Then the batches
    before decide, or that a sum is divided by it: a weighted mean whose weights are all 0.
    """
    if not summed.is_floating_point():
        return True
    if not bool(((summed == 0) | (summed == 1)).all()):
        return False
    if bool((summed != 0).any()) or made_here:
        return True
    before = flags_before(case, summed)
    assert case.capture is not None
    divided = [op.name.removeprefix("aten.") for op in case.source_ops(case.capture.op, 0)[:2]]
    return before if before is not None else any(name in _SUMS for name in divided)


def _empty(case: Case, summary: str, text: str, advice: str, trial: Trial | None) -> Claim:
    facts = [text]
    if case.incident.grad_norm is not None and case.incident.grad_norm == 0:
        facts.append("the gradients are all zero: nothing to roll back")
    return Claim(
        "measured", summary, tuple(facts), trial=trial, shows="with the safe form the step is finite", help=advice
    )


@rule("ctc_infeasible_alignment")
def ctc_infeasible_alignment(case: Case) -> Claim | None:
    """A CTC target does not fit into its input.

    CTC aligns each label with at least one frame, and two equal neighbours need a blank between them. If the target
    is longer than the input allows, no alignment exists, its probability is 0, and the loss is Inf. Subsampling in
    the encoder (a stride of 4) is how a good transcript becomes too long.

    Example:
        import torch
        from torch import nn

        model = nn.Linear(5, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        targets = [torch.tensor([[1, 2, 3]]), torch.tensor([[1, 1, 1]])]  # 1 1 1 needs 5 frames: 1 _ 1 _ 1
        batches = [(torch.randn(4, 1, 5), target) for target in targets]

        def loss_fn(batch):
            frames, target = batch
            log_probs = model(frames).log_softmax(-1)
            return nn.functional.ctc_loss(log_probs, target, torch.tensor([4]), torch.tensor([3]))

    Why:
        A target of L labels with r pairs of equal neighbours needs at least L + r frames. Below that the sum over
        alignments is empty, and the loss is -log 0 = Inf, with NaN gradients.

    Fix:
        Drop what cannot be aligned, and count it, since it points to a fault in the data or to a stride that is too
        large:

            - loss = nn.functional.ctc_loss(log_probs, targets, input_lengths, target_lengths)
            + loss = nantrap.ops.ctc_loss(log_probs, targets, input_lengths, target_lengths)

        `zero_infinity=True` makes the loss finite and hides how many samples it threw away: with a stride that is too
        large that can be most of them. Pass the lengths after subsampling, not those of the waveform.

    Proof:
        Arithmetic on the lengths and labels that `ctc_loss` received, sample by sample.
    """
    for call in case.calls_of("aten._ctc_loss"):
        if len(call.args) >= 4:
            bad = _infeasible(*call.args[:4])
            if bad and not bool(call.outputs[0].isfinite().all()):
                sample, needed, given = bad[0]
                return Claim(
                    "measured",
                    f"sample {sample} needs {needed} frames for its target, the input has {given}",
                    (
                        f"{len(bad)} of {call.args[0].shape[1]} targets do not fit: {where_text(bad)}",
                        "a target of length L with r repeated neighbours needs at least L + r input frames",
                    ),
                    help="nantrap.ops.ctc_loss, which leaves such samples out and counts them; or drop them from the "
                    "data "
                    "(zero_infinity=True hides them)",
                )
    return None


def _infeasible(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
) -> list[tuple[int, int, int]]:
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


@rule("input_out_of_scale")
def input_out_of_scale(case: Case) -> Claim | None:
    """A batch or target lies in another scale than the others.

    The values are finite and no sentinel, but of another size than what the model was made for: one value of 1e25 from
    a file read with the wrong byte order, a column in pascal where bar was meant, pixels of 0 to 255 where 0 to 1 was
    trained on. A square or a sum of them leaves the range of the dtype.

    Example:
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [torch.randn(8, 4) for _ in range(4)]
        batches[3][5, 1] = 1e25  # one value, read with the wrong byte order

        def loss_fn(batch):
            return model(batch).square().mean()

    Why:
        Everything after the input is built for numbers near 1. 1e25 squared is 1e50, and float32 ends at 3.4e38.

    Fix:
        Check the range where the data are read, and scale there:

            - x = torch.from_numpy(raw)
            + x = torch.from_numpy(raw)
            + if x.abs().max() > 1e6:
            +     raise ValueError(f"{path}: values up to {x.abs().max():.3g}")

        Gradient clipping does not help, since the loss itself overflows. A clamp of the input hides the bad file.

    Proof:
        The largest value of the batch is far beyond the usual inputs of a network, or beyond those of the batches
        before it, and the step is finite without the sample that holds it, or with the batch brought to the usual
        scale.
    """
    found = largest_input(case)
    if found is None:
        return _in_other_units(case)
    if _is_sentinel(found.tensor, found.value):
        return None
    return out_of_range(
        case,
        found,
        f"the batch is out of scale: {found.name} reaches {found.value:.3g}",
        "check the range where the data are read, and scale or drop what lies outside it",
    )


def _in_other_units(case: Case) -> Claim | None:
    """A batch that no network would find absurd, and that is far outside the batches before it.

    Where an exponential overflowed there are two explanations: code that passes an unbounded number to exp, and a batch
    in another unit. Three things decide. Code that has a form which is exact and does not overflow is the cause, if the
    step is finite with it. Otherwise it is the batch, if it is too far outside to be an unusual sample, and the step is
    finite with the batch in its usual range.
    """
    if case.made != "inf" or case.half or case.phase not in ("forward", "backward") or case.failed.norm_overflowed:
        return None
    unusual = unusual_inputs(case)
    if not unusual or not _left_the_range(case):
        return None
    furthest = unusual[0]
    claim = Claim(
        "hint",
        f"the batch is in another scale than those before it: {furthest.name} reaches {furthest.value:.4g}",
        (f"{furthest.words}: {furthest.factor:.3g} times",),
        help=f"check the range of {furthest.name} where the data are read, and scale or drop what lies outside it",
    )
    if not case.failed.repeatable or (case.op in EXPONENTIALS and not furthest.in_other_units):
        return claim
    if case.op in EXPONENTIALS and case.feeds_a_logarithm and case.lab.in_log_space(IN_LOG_SPACE).finite:
        return claim
    scaled = in_usual_range(case.failed.batch, unusual)
    trial = case.lab.with_batch("usual_range", "the batch brought to the range of those before it", scaled)
    if trial.finite is False:
        return None
    return replace(
        claim, has="tried", trial=trial, shows="with the batch in that range the step is finite", verifies=False
    )


def _left_the_range(case: Case) -> bool:
    """Whether the exact result is a number that the dtype cannot hold; at a pole (log 0, 1/0) it is no number."""
    if case.op in EXPONENTIALS:
        return True
    from nantrap.causes.reference import recomputed

    exact = recomputed(case, "float64")
    return exact is not None and bool(exact.isfinite().all())
