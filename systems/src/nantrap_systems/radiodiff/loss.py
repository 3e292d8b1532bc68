"""The loss: the errors of Ĉ and ε̂, weighted by the time, and the evaluation.

    loss_simple = ½·mean[w₁(|Ĉ-C|² + |Ĉ-C|) + w₂(|ε̂-ε|² + |ε̂-ε|)],   w₁ = 2e^(1-t),   w₂ = e^√t
    loss_vlb    = weight · mean[(1-t)·|x̂₀-x₀|],   x̂₀ = x_t - Ĉ·t - √t·ε̂

The weight of `loss_vlb` is 0 in the project; the term is still logged. The evaluation is the loss on held-out
maps at fixed times, and the share of free cells whose gain is right within some decibels when the map is restored from
t = 0.5, x̂₀ = x_t - Ĉ·t - √t·ε̂. Without the network, the noisy latent decoded as it is gets half of the cells right, the
best constant map two fifths.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nantrap.ops import decoupled_weights, safe_sqrt
from nantrap_systems.radiodiff.data import DECIBELS, Batch
from nantrap_systems.radiodiff.model import Latents, RadioDiff
from nantrap_systems.system import Evaluation

Weights = Callable[[Tensor], tuple[Tensor, Tensor]]

EVALUATION_TIMES = (0.2, 0.5, 0.8)
RESTORE_TIME = 0.5
NEAR_DECIBELS = 6.0


def decoupled_terms(
    latents: Latents, drift: Tensor, noise: Tensor, *, vlb_weight: float = 0.0, weights: Weights = decoupled_weights
) -> dict[str, Tensor]:
    """Both terms of the loss, by the names under which the project logs them."""
    w1, w2 = (weight[:, None, None, None] for weight in weights(latents.t_B))
    off_drift, off_noise = drift.float() - latents.drift, noise.float() - latents.noise
    simple = w1 * (off_drift**2 + off_drift.abs()) + w2 * (off_noise**2 + off_noise.abs())
    terms = {"loss_simple": simple.mean() / 2}
    if vlb_weight:
        t = latents.t_B[:, None, None, None]
        start = restored(latents, drift, noise)
        terms["loss_vlb"] = vlb_weight * ((1 - t) * (start - latents.start).abs()).mean()
    else:
        terms["loss_vlb"] = simple.new_zeros(())
    return terms


Steps = Callable[[int, float], list[float]]
"""The steps of a sampler, by their number and by the first time."""


@torch.no_grad()
def evaluate(model: RadioDiff, held_out: Batch, *, steps: Steps | None = None) -> Evaluation:
    """The loss over fixed times, and the share of free cells that restored maps get right, in float32.

    With `steps` the maps are sampled from noise by these steps instead of restored.
    """
    generator = torch.Generator().manual_seed(0)
    was_training = model.training
    model.eval()
    start = model.first_stage.encode(held_out.image).mean * model.decided_scale
    noise = torch.randn(start.shape, generator=generator)
    losses = []
    for time in EVALUATION_TIMES:
        latents = Latents(start, torch.full((len(start),), time), noise)
        predicted = model.unet(latents.noisy, latents.t_B, held_out.condition)
        losses.append(float(decoupled_terms(latents, *predicted)["loss_simple"]))
        if time == RESTORE_TIME:
            found = model.first_stage.decode(restored(latents, *predicted) / model.decided_scale)
    if steps is not None:
        found = model.sample(held_out.condition, generator=generator, steps=steps)
    model.train(was_training)
    return Evaluation(sum(losses) / len(losses), within(found, held_out))


def restored(latents: Latents, drift: Tensor, noise: Tensor) -> Tensor:
    """x̂₀ = x_t - Ĉ·t - √t·ε̂."""
    t = latents.t_B[:, None, None, None]
    return latents.noisy - drift.float() * t - safe_sqrt(t) * noise.float()


def within(found: Tensor, batch: Batch, *, decibels: float = NEAR_DECIBELS) -> float:
    """The share of free cells whose gain is right within a number of decibels; NaN is never right."""
    free = batch.condition[:, :1] == 0
    off = (found.float() - batch.image)[free].abs() / 2 * DECIBELS
    return (off <= decibels).float().mean().item()
