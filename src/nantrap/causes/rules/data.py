"""NT1xx: the batch, and reductions over nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nantrap.causes.facts import describe, share, where_text
from nantrap.causes.proofs import add_proof, fix_for, try_replacement
from nantrap.causes.registry import rule
from nantrap.incident import Cause, Evidence, Fix, Trial

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case

_ABSURD = 1e15
_ADDED_OVER_MASKS = ("sum", "count_nonzero", "mean")
_FLAGS = (
    "gt", "ge", "lt", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bitwise_not",
    "bitwise_and", "isfinite",
    "ones_like", "zeros_like", "ones", "zeros", "one_hot", "scatter", "arange", "count_nonzero", "masked_fill", "where",
    "rsub", "new_ones", "new_zeros", "full",
)  # fmt: skip
_SPREADS = ("std", "var", "linalg_vector_norm", "sub", "amax", "max", "sqrt", "norm", "native_layer_norm", "abs")


@rule("bad_input_data")
def bad_input_data(case: Case) -> Cause | None:
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

        What does not help: `torch.isnan(x).any()` misses Inf, ask `isfinite`. `x.clamp(-10, 10)` passes NaN through.
        `nan_to_num(x)` turns a missing value into a measured 0 and Inf into 3.4e38, which overflows in the next
        product. `nan_to_num(loss)` leaves the gradients as they are.

    Proof:
        The tensor is read before the forward pass: its path in the batch, the samples and the counts are a
        measurement. For values that are finite but absurd, the step is run again without the suspect samples and must
        then be finite.
    """
    external = case.external
    if external is not None and external.kind == "batch":
        finding = next((f for f in case.location.findings if f.kind == "batch"), None)
        samples = finding.samples if finding else ()
        noun = "sample" if len(samples) == 1 else "samples"
        which = f", {noun} {', '.join(map(str, samples[:6]))}" if samples else ""
        evidence = [Evidence(f"{external.name} {describe(external.tensor)} before the forward pass{which}")]
        trial: Trial | None = None
        if case.location.samples.rest_is_finite:
            trial = case.lab.without_samples(case.location.samples.guilty, case.location.samples.size or 0)
            add_proof(evidence, trial, "without those samples the step is finite")
        given = case.was_given(external.tensor)
        return Cause(
            "bad_input_data",
            proven=given,
            confidence=0.99 if given else 0.6,
            summary=f"the batch is non-finite before the forward pass: {external.name}"
            if given
            else f"a tensor that the loss reads without a gradient is non-finite: {external.name}",
            evidence=tuple(evidence),
            fix=fix_for(
                case, f"clean or drop the sample where {external.name} is made; meanwhile its steps are skipped", trial
            ),
        )
    return _finite_nonsense(case)


def _finite_nonsense(case: Case) -> Cause | None:
    """Finite values so large that the first operation that meets them overflows: a sentinel, a wrong unit."""
    samples = case.location.samples
    worst = _largest_input(case)
    if case.made != "inf" or worst[0] < _ABSURD:
        return None
    if not case.failed.repeatable and case.growth < 8:
        return Cause(
            "bad_input_data",
            confidence=0.6,
            summary=f"the batch holds nonsense: {worst[1]} reaches {worst[0]:.3g}",
            evidence=(Evidence(f"|{worst[1]}| reaches {worst[0]:.4g}, though it is finite"),),
            fix=Fix(text="replace the sentinel or missing-value code before the data reach the model"),
        )
    if not samples.guilty or not samples.rest_is_finite:
        return None
    trial = case.lab.without_samples(samples.guilty, samples.size or 0)
    if not trial.finite:
        return None
    which = ", ".join(map(str, samples.guilty[:6]))
    return Cause(
        "bad_input_data",
        proven=True,
        confidence=0.97,
        summary=f"the batch holds nonsense: {worst[1]} reaches {worst[0]:.3g}",
        evidence=(
            Evidence(f"|{worst[1]}| reaches {worst[0]:.4g} in sample {which}, though it is finite"),
            Evidence("without that sample the step is finite", kind="trial", trial=trial.number),
        ),
        fix=Fix(
            text="replace the sentinel or missing-value code before the data reach the model",
            verified=True,
            trial=trial.number,
        ),
    )


def _largest_input(case: Case) -> tuple[float, str]:
    """The largest magnitude that came in from outside, and its name.

    From the batch, or in the two-line form from the model's inputs and the targets of the guilty call.
    """
    from nantrap.locate import tensors_of

    given = list(tensors_of(case.failed.batch))
    if not case.failed.repeatable and case.failed.root_call is not None:
        given += list(tensors_of((case.failed.root_call.args, case.failed.root_call.kwargs)))
    if not case.failed.repeatable and case.capture is not None and case.location.module == "loss":
        given += [("a target of the loss", t) for t in case.capture.inputs() if not t.requires_grad]
    worst = (0.0, "")
    for path, tensor in given:
        if tensor.is_floating_point() and tensor.numel():
            worst = max(worst, (float(tensor.detach().abs().max()), path))
    return worst


@rule("empty_reduction")
def empty_reduction(case: Case) -> Cause | None:
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
            text = f"all {target.numel():,} targets are {ignored} (ignored): the mean is 0/0"
            if bool((target != ignored).any()):
                text = "the weights of all classes that occur are 0: the mean is 0/0"
            trial = try_replacement(case, "cross_entropy", "nantrap.ops.cross_entropy")
            return _empty(
                case, "every label of the batch is ignored", text, "nantrap.ops.cross_entropy(logits, labels)", trial
            )
    if case.inputs and all(t.numel() == 0 for t in case.inputs):
        text = f"{capture.op.name} was given an empty tensor of shape {tuple(case.inputs[0].shape)}"
        return _empty(
            case,
            "a reduction over no element",
            text,
            "skip the term when nothing is selected, or nantrap.ops.masked_mean(x, mask)",
            None,
        )
    return _count_of_nothing(case)


def _count_of_nothing(case: Case) -> Cause | None:
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
    text = (
        f"the denominator is exactly 0 in {share(denominator == 0)} and was made by {counted}, the numerator is 0 too"
    )
    trial = try_replacement(case, "div", "nantrap.ops.safe_divide")
    return _empty(
        case,
        "a mean over a mask that selects nothing",
        text,
        "nantrap.ops.masked_mean(x, mask), or divide by count.clamp(min=1)",
        trial,
    )


def _perhaps_nothing(case: Case, numerator: Tensor, denominator: Tensor) -> Cause | None:
    """In the two-line form nobody saw who made the two: one sum divided by another, both exactly 0."""
    if numerator.numel() != 1 or denominator.numel() != 1:
        return None
    return Cause(
        "empty_reduction",
        confidence=0.7,
        summary="a sum of 0 divided by a count of 0: nothing was selected",
        evidence=(
            Evidence("numerator and denominator are single numbers, both exactly 0; what made them was not seen"),
        ),
        fix=Fix(text="nantrap.ops.masked_mean(x, mask), or divide by count.clamp(min=1)"),
    )


def _counted_by(case: Case) -> str | None:
    """The operation that counted a mask to make the denominator: a sum over comparisons, flags or whole numbers."""
    assert case.capture is not None
    chain = case.source_ops(case.capture.op, 1)
    names = [op.name.removeprefix("aten.") for op in chain]
    position = next((i for i, name in enumerate(names) if name in (*_ADDED_OVER_MASKS, *_SPREADS)), None)
    if position is None or names[position] not in _ADDED_OVER_MASKS:
        return None
    behind = chain[position:]
    from_outside = behind[-1].sources[:1] == (-1,) and len(behind) <= 3  # a mask that came with the batch
    if from_outside or any(op.name.removeprefix("aten.") in _FLAGS for op in behind):
        return names[position]
    return None


def _empty(case: Case, summary: str, text: str, fix: str, trial: Trial | None) -> Cause:
    evidence = [Evidence(text)]
    if case.incident.grad_norm is not None and case.incident.grad_norm == 0:
        evidence.append(Evidence("the gradients are all zero: nothing to be rolled back"))
    add_proof(evidence, trial, "with the safe form the step is finite")
    return Cause(
        "empty_reduction",
        proven=True,
        confidence=0.96,
        summary=summary,
        evidence=tuple(evidence),
        fix=fix_for(case, fix, trial),
    )


@rule("ctc_infeasible_alignment")
def ctc_infeasible_alignment(case: Case) -> Cause | None:
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
                return Cause(
                    "ctc_infeasible_alignment",
                    proven=True,
                    confidence=0.98,
                    summary=f"sample {sample} needs {needed} frames for its target, the input has {given}",
                    evidence=(
                        Evidence(f"{len(bad)} of {call.args[0].shape[1]} targets do not fit: {where_text(bad)}"),
                        Evidence("a target of length L with r repeated neighbours needs at least L + r input frames"),
                    ),
                    fix=Fix(
                        text="nantrap.ops.ctc_loss, which leaves such samples out and counts them; or drop "
                        "them from the data "
                        "(zero_infinity=True hides them)"
                    ),
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
