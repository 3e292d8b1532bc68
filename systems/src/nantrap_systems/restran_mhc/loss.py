"""The loss: CTC between the columns of the model and the characters of the plate.

And the evaluation: the same on held-out plates, and the share of characters that are read right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.ops import ctc_loss
from nantrap_systems.precision import autocast
from nantrap_systems.restran_mhc.data import BLANK, Batch
from nantrap_systems.system import Evaluation

Ctc = Callable[..., Tensor]
"""The loss of log-probabilities [T, B, 37], labels [B, 7], and their lengths [B] each."""


def plate_loss(model: nn.Module, batch: Batch, *, dtype: torch.dtype | None = None, ctc: Ctc = ctc_loss) -> Tensor:
    """The loss of a batch: the model under autocast if there is a dtype, CTC in float32."""
    return _ctc(_log_probs(model, batch, dtype), batch.labels, ctc)


@torch.no_grad()
def evaluate(model: nn.Module, held_out: Batch, *, dtype: torch.dtype | None = None) -> Evaluation:
    """The loss on held-out plates, and the share of their characters that is read right."""
    model.eval()
    log_probs = _log_probs(model, held_out, dtype)
    model.train()
    return Evaluation(float(_ctc(log_probs, held_out.labels, ctc_loss)), character_accuracy(log_probs, held_out.labels))


def _log_probs(model: nn.Module, batch: Batch, dtype: torch.dtype | None) -> Tensor:
    with autocast(dtype):
        logits_BTK = model(batch.frames, batch.there)
    log_probs_TBK: Tensor = logits_BTK.float().log_softmax(-1).transpose(0, 1)
    return log_probs_TBK


def _ctc(log_probs_TBK: Tensor, labels: Tensor, ctc: Ctc) -> Tensor:
    columns, count, _ = log_probs_TBK.shape
    return ctc(log_probs_TBK, labels, torch.full((count,), columns), torch.full((count,), labels.shape[1]))


def read(log_probs_TBK: Tensor) -> list[list[int]]:
    """The labels of the best path: repetitions once, blanks left out. A sample with a NaN in it says nothing."""
    best_BT = log_probs_TBK.argmax(-1).T.tolist()
    spoilt = log_probs_TBK.isnan().any(-1).any(0).tolist()
    return [
        [] if bad else [here for here, before in zip(row, [BLANK, *row], strict=False) if here not in (before, BLANK)]
        for row, bad in zip(best_BT, spoilt, strict=True)
    ]


def character_accuracy(log_probs_TBK: Tensor, labels: Tensor) -> float:
    """1 - (edit distance / characters), not below 0, over all plates."""
    wrong = sum(edit_distance(found, true) for found, true in zip(read(log_probs_TBK), labels.tolist(), strict=True))
    return max(0.0, 1 - wrong / labels.numel())


def edit_distance(left: list[Any], right: list[Any]) -> int:
    """How many characters must be put in, taken out or changed."""
    row = list(range(len(right) + 1))
    for above, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], above
        for column, b in enumerate(right, start=1):
            diagonal, row[column] = row[column], min(diagonal + (a != b), row[column] + 1, row[column - 1] + 1)
    return row[-1]
