"""The data: embeddings of a mixture of Gaussians, made once, kept on disk, and paired with near neighbours.

gaussian_embeddings     what a backbone would have given: points around the centres of clusters
Cache                   the file they are kept in, `{"embeddings": ..., "labels": ...}`, and how it is read
check_embeddings        what is asked of them on load
nearest                 the k nearest neighbours of every point
Batch, Pairs            points and one random neighbour of each, by the number of the step
"""

from __future__ import annotations

import getpass
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from nantrap.errors import FormatError
from nantrap.ops import safe_divide, safe_norm
from nantrap.record.durable import put_in_place, written_beside
from nantrap_systems.temi.settings import Settings

Extract = Callable[[Settings], tuple[Tensor, Tensor]]
"""Makes embeddings [N, D] and their true clusters [N]."""
Check = Callable[[Tensor, Path], None]
"""Checks embeddings read from a file; raises `FormatError` if they cannot be used."""

_log = logging.getLogger(__name__)
_SEED = 2303
_RECIPE = 2
"""Counted up when the same settings give other embeddings, so that an old cache is not taken for a new one."""


def gaussian_embeddings(settings: Settings) -> tuple[Tensor, Tensor]:
    """Points of all clusters in turn, a centre and noise of deviation 1; a few lie four times as far out."""
    generator = torch.Generator().manual_seed(_SEED)
    clusters, count, dim = settings.num_clusters, settings.samples_per_cluster, settings.embed_dim
    centres = settings.spread * torch.randn(clusters, dim, generator=generator)
    labels = torch.arange(clusters).repeat(count)
    embeddings = centres[labels] + torch.randn(clusters * count, dim, generator=generator)
    embeddings[torch.randperm(len(labels), generator=generator)[: settings.outliers]] *= 4
    return embeddings, labels


def check_embeddings(embeddings: Tensor, path: Path) -> None:
    """NaN and Inf are refused, with their row."""
    bad = (~embeddings.isfinite()).any(-1).nonzero().flatten().tolist()
    if bad:
        raise FormatError(
            f"{path}: {summary(embeddings)}; the first of {len(bad)} bad rows is {bad[0]}. "
            "Repair what makes them, then --force-recompute"
        )


def summary(embeddings: Tensor) -> str:
    """What is logged on load: `2,000 embeddings: NaN 0, Inf 0, min -4.3, max 4.1`."""
    kept = embeddings[embeddings.isfinite()]
    low, high = (f"{float(kept.min()):.3g}", f"{float(kept.max()):.3g}") if kept.numel() else ("none", "none")
    nan, inf = int(embeddings.isnan().sum()), int(embeddings.isinf().sum())
    return f"{len(embeddings):,} embeddings: NaN {nan}, Inf {inf}, min {low}, max {high}"


IN_CACHE_DIR = "embeddings_train.pt"
"""The name of the file in a `cache_dir`."""


@dataclass(frozen=True, slots=True)
class Cache:
    """One file of embeddings. `recipe` says how they were made; those of another recipe are not taken."""

    path: Path
    recipe: str

    @classmethod
    def of(cls, settings: Settings, maker: str) -> Cache:
        """The file of these settings; `maker` is the name of what makes the embeddings."""
        sizes = f"{settings.num_clusters}x{settings.samples_per_cluster}x{settings.embed_dim}"
        recipe = f"{maker}-{sizes}-{settings.spread:g}-{settings.outliers}-{_RECIPE}"
        if settings.cache_dir:
            return cls(Path(settings.cache_dir) / IN_CACHE_DIR, recipe)
        return cls(Path(tempfile.gettempdir(), f"nantrap-temi-{_user()}", f"{recipe}.pt"), recipe)

    def load(
        self, extract: Callable[[], tuple[Tensor, Tensor]], *, check: Check, recompute: bool
    ) -> tuple[Tensor, Tensor]:
        """Embeddings and labels; made and written first if there is no file, or if `recompute`."""
        if recompute or not self.path.exists():
            self._write(*extract())
        try:
            found = torch.load(self.path, weights_only=True)
            embeddings, labels, recipe = found["embeddings"], found["labels"], found["recipe"]
        except Exception as error:
            raise FormatError(
                f"{self.path}: no cache of embeddings, --force-recompute makes it again: {error}"
            ) from None
        if recipe != self.recipe:
            raise FormatError(
                f"{self.path}: made by other settings ({recipe}, now {self.recipe}); --force-recompute makes it again"
            )
        _log.info("%s: %s", self.path, summary(embeddings))
        check(embeddings, self.path)
        return embeddings, labels

    def _write(self, embeddings: Tensor, labels: Tensor) -> None:
        """The embeddings on disk, whole or not at all."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_beside(self.path) as file:
            torch.save({"embeddings": embeddings, "labels": labels, "recipe": self.recipe}, file)
        put_in_place(self.path)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid()) if hasattr(os, "getuid") else "user"


def nearest(embeddings: Tensor, k: int) -> Tensor:
    """The k nearest other points of every point by their cosine, [N, k]; NaN is never a neighbour."""
    unit = safe_divide(embeddings, safe_norm(embeddings, -1, keepdim=True))
    cosine = (unit @ unit.T).nan_to_num(nan=-1.0)
    return cosine.fill_diagonal_(-torch.inf).topk(k).indices


class Batch(NamedTuple):
    """Points [B, D] and a neighbour of each [B, D]."""

    x: Tensor
    neighbour: Tensor


class Pairs:
    """All embeddings, split into those to train on and, every fifth, those held out; neighbours within each part."""

    def __init__(
        self, settings: Settings, *, extract: Extract = gaussian_embeddings, check: Check = check_embeddings
    ) -> None:
        cache = Cache.of(settings, extract.__name__)
        embeddings, labels = cache.load(lambda: extract(settings), check=check, recompute=settings.force_recompute)
        self.facts = (f"cache: {cache.path}", f"  {summary(embeddings)}")
        held_out = torch.arange(len(embeddings)) // settings.num_clusters % 5 == 0
        self.training = embeddings[~held_out]
        self.neighbours = nearest(self.training, settings.knn)
        points = embeddings[held_out]
        self.held_out = Batch(points, points[nearest(points, 1)[:, 0]])
        self.labels = labels[held_out]

    def batch(self, number: int, *, size: int, seed: int) -> Batch:
        """The batch of this number: always the same for the same seed."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        chosen = torch.randint(len(self.training), (size,), generator=generator)
        which = torch.randint(self.neighbours.shape[1], (size,), generator=generator)
        return Batch(self.training[chosen], self.training[self.neighbours[chosen, which]])
