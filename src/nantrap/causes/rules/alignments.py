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
    """A CTC target does not fit into its input."""
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
