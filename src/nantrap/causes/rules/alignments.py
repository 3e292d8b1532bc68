"""NT1xx: targets that are longer than their input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nantrap.causes.claim import Claim
from nantrap.causes.facts import where_text
from nantrap.causes.registry import rule

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case


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
