"""What a model must beat: answers that need no training, in the figure of each system.

`python -m nantrap_systems.baselines [SYSTEM...]` prints them, next to the model before training and after 50 steps from
three seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from nantrap_systems import SYSTEMS, load_system
from nantrap_systems.system import Run
from nantrap_systems.training import train

STEPS, SEEDS = 50, (8, 9, 10)


@torch.no_grad()
def radiodiff(run: Run) -> dict[str, float]:
    """The best map of one gain everywhere, and the noisy latent of the evaluation, decoded as it is."""
    from nantrap_systems.radiodiff.data import Maps
    from nantrap_systems.radiodiff.loss import RESTORE_TIME, within
    from nantrap_systems.radiodiff.model import Latents
    from nantrap_systems.radiodiff.settings import DataSettings

    model, held_out = cast(Any, run.model), Maps(DataSettings()).held_out
    values = torch.linspace(-1, 1, 41).tolist()
    constant = max(within(torch.full_like(held_out.image, value), held_out) for value in values)
    start = model.first_stage.encode(held_out.image).mean * model.decided_scale
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    noisy = Latents(start, torch.full((len(start),), RESTORE_TIME), noise).noisy / (1 - RESTORE_TIME)
    return {
        "the best constant map": constant,
        "the noisy latent, decoded": within(model.first_stage.decode(noisy / model.decided_scale), held_out),
    }


def latentdlm(run: Run) -> dict[str, float]:
    """Always the same byte."""
    from nantrap_systems.latentdlm.data import Texts
    from nantrap_systems.latentdlm.settings import DataSettings

    held_out = Texts(DataSettings()).held_out
    counts = held_out.tokens[held_out.attention_mask].bincount(minlength=256)
    return {"always the most frequent byte": float(counts.max() / counts.sum())}


def restran_mhc(run: Run) -> dict[str, float]:
    """Always the same plate: at every place the most frequent character of the plates to train on."""
    from nantrap_systems.restran_mhc.data import Plates
    from nantrap_systems.restran_mhc.loss import edit_distance

    plates = Plates(height=16, width=72, frames=1, level=0, missing=0.0, black=0.0, oversample=0.0)
    plate = plates.training.mode(0).values.tolist()
    wrong = sum(edit_distance(plate, true) for true in plates.held_out.labels.tolist())
    return {"always the same plate": 1 - wrong / plates.held_out.labels.numel()}


def temi(run: Run) -> dict[str, float]:
    """k-means of the embeddings with the true number of clusters, the best of ten starts; clusters at random."""
    from nantrap_systems.temi.data import Pairs
    from nantrap_systems.temi.loss import purity
    from nantrap_systems.temi.settings import Settings

    settings = Settings()
    pairs = Pairs(settings)
    points, generator = pairs.held_out.x, torch.Generator().manual_seed(0)
    tried = [_k_means(points, settings.num_clusters, generator) for _ in range(10)]
    _, nearest_BK = min(tried, key=lambda each: each[0])
    random = torch.rand(len(points), settings.num_clusters, generator=generator)
    return {"clusters at random": purity(random, pairs.labels), "k-means": purity(-nearest_BK, pairs.labels)}


def _k_means(points: Tensor, count: int, generator: torch.Generator, *, rounds: int = 50) -> tuple[float, Tensor]:
    """The sum of distances to the nearest centre, and all distances [points, centres]."""
    centres = points[torch.randperm(len(points), generator=generator)[:count]]
    for _ in range(rounds):
        chosen = torch.cdist(points, centres).argmin(1)
        found = [points[chosen == number] for number in range(count)]
        centres = torch.stack([new.mean(0) if len(new) else old for new, old in zip(found, centres, strict=True)])
    distances = torch.cdist(points, centres)
    return float(distances.amin(1).sum()), distances


def pixeldlm(run: Run) -> dict[str, float]:
    """The noisy image as it came, and the most likely character at every pixel by noise and frequency."""
    from nantrap_systems.pixeldlm.data import Texts, frequencies, palette
    from nantrap_systems.pixeldlm.loss import RECOVERY_TIME, evaluation_noise, recovered
    from nantrap_systems.pixeldlm.settings import DataSettings, DiffusionSettings

    texts = Texts(DataSettings(), slots=2)
    share = DiffusionSettings().alpha(torch.tensor(RECOVERY_TIME))
    noisy = share * texts.held_out.image + (1 - share) * evaluation_noise(texts.held_out)
    far = (noisy[..., None, :] - share * palette()).square().sum(-1)
    likely = frequencies(texts.training).log() - far / (2 * (1 - share).square())
    return {
        "the noisy input": recovered(noisy, texts.held_out),
        "unigram decoder": recovered(palette()[likely.argmax(-1)], texts.held_out),
    }


BASELINES: Mapping[str, Callable[[Run], dict[str, float]]] = {
    "radiodiff": radiodiff,
    "latentdlm": latentdlm,
    "restran_mhc": restran_mhc,
    "temi": temi,
    "pixeldlm": pixeldlm,
}


def table_of(name: str) -> str:
    """The baselines of a system, its model before training and after 50 steps, as Markdown."""
    system = load_system(name)
    before: list[float] = []
    after: list[float] = []
    found: dict[str, float] = {}
    for seed in SEEDS:
        run = system.run(seed=seed)
        if not before:
            list(train(run, steps=1))  # what the first batch decides is there
            found, run = BASELINES[name](run), system.run(seed=seed)
        before.append(run.evaluate().quality)
        list(train(run, steps=STEPS))
        after.append(run.evaluate().quality)
    lines = [f"| | {system.quality} |", "| --- | --- |"]
    lines += [f"| {way} | {value:.1%} |" for way, value in found.items()]
    lines.append(f"| the model before training | {_span(before)} |")
    return "\n".join([*lines, f"| after {STEPS} steps, seeds {', '.join(map(str, SEEDS))} | {_span(after)} |"])


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1%}", f"{max(values):.1%}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or SYSTEMS:
        sys.stdout.write(f"{chosen}\n\n{table_of(chosen)}\n\n")
