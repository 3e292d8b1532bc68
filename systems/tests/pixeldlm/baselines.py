"""What the model must beat: answers that need no training, or only a count of characters.

noisy_input         the noisy image as it came
unigram_decoder     the most likely character at every pixel, from the noise and from how frequent each character is
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nantrap_systems.pixeldlm.data import Batch, frequencies, palette
from nantrap_systems.pixeldlm.loss import RECOVERY_TIME, evaluation_noise, recovered

Alpha = Callable[[Tensor], Tensor]


def noisy_at(batch: Batch, time: float, alpha: Alpha) -> Tensor:
    """The held-out images as the evaluation makes them noisy."""
    share = alpha(torch.tensor(time))
    return share * batch.image + (1 - share) * evaluation_noise(batch)


def unigram_decoder(noisy: Tensor, time: float, shares_K: Tensor, alpha: Alpha) -> Tensor:
    """The image of the most likely characters: likelihood of the noisy pixel times the character's frequency."""
    share = alpha(torch.tensor(time))
    far = (noisy[..., None, :] - share * palette()).square().sum(-1)
    return palette()[(shares_K.log() - far / (2 * (1 - share).square())).argmax(-1)]


def baselines(training: Batch, held_out: Batch, alpha: Alpha) -> dict[str, float]:
    """Token recovery of each, at the time at which the model's is measured."""
    noisy = noisy_at(held_out, RECOVERY_TIME, alpha)
    decoded = unigram_decoder(noisy, RECOVERY_TIME, frequencies(training), alpha)
    return {"noisy input": recovered(noisy, held_out), "unigram decoder": recovered(decoded, held_out)}
