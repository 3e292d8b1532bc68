"""The embeddings: the mixture, the cache and its check, neighbours, batches."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nantrap.errors import FormatError
from nantrap_systems.temi.data import Cache, Pairs, check_embeddings, gaussian_embeddings, nearest, summary
from nantrap_systems.temi.faults import blank_images, one_unreadable, unchecked
from nantrap_systems.temi.settings import Settings


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return Pairs(Settings())


def in_folder(folder: Path) -> Settings:
    return Settings(cache_dir=str(folder), samples_per_cluster=10, knn=3)


def test_the_mixture_has_its_clusters_and_its_outliers() -> None:
    embeddings, labels = gaussian_embeddings(Settings())
    assert embeddings.shape == (2000, 64)
    assert torch.equal(labels.bincount(), torch.full((20,), 100))
    centres = torch.stack([embeddings[labels == k].mean(0) for k in range(20)])
    assert centres.std().item() == pytest.approx(0.7, abs=0.05)
    assert (embeddings.norm(dim=-1) > 25).sum() == 4


def test_neighbours_mostly_are_of_one_cluster(pairs: Pairs) -> None:
    _, labels = gaussian_embeddings(Settings())
    labels = labels[torch.arange(2000) // 20 % 5 != 0]
    assert pairs.neighbours.shape == (1600, 25)
    assert (labels[pairs.neighbours] == labels[:, None]).float().mean() > 0.85
    assert (pairs.neighbours != torch.arange(1600)[:, None]).all(), "no point is its own neighbour"


def test_nearest_is_by_the_cosine_and_leaves_nan_alone() -> None:
    points = torch.tensor([[1.0, 0.0], [9.0, 0.1], [0.0, 1.0], [torch.nan, 1.0], [0.1, 1.0]])
    assert nearest(points, 1)[[0, 1, 2, 4], 0].tolist() == [1, 0, 4, 2]
    assert 3 not in nearest(points, 3)[[0, 1, 2, 4]]


def test_the_cache_is_written_once_and_read_again(tmp_path: Path) -> None:
    settings = in_folder(tmp_path)
    first = Pairs(settings)
    (path,) = tmp_path.iterdir()
    content = torch.load(path, weights_only=True)
    assert path.name == "embeddings_train.pt"
    assert set(content) == {"embeddings", "labels", "recipe"}
    content["embeddings"] += 1
    torch.save(content, path)
    assert torch.equal(Pairs(settings).training, first.training + 1), "read, not made"
    again = Pairs(Settings(cache_dir=str(tmp_path), samples_per_cluster=10, knn=3, force_recompute=True))
    assert torch.equal(again.training, first.training)
    assert [each.name for each in tmp_path.iterdir()] == [path.name], "nothing is left beside it"


def test_another_recipe_is_another_file() -> None:
    names = {Cache.of(settings, "a").path.name for settings in (Settings(), Settings(spread=1), Settings(outliers=0))}
    assert len(names | {Cache.of(Settings(), "b").path.name}) == 4


def test_a_file_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    Pairs(in_folder(tmp_path))
    other = Settings(cache_dir=str(tmp_path), samples_per_cluster=12, knn=3)
    with pytest.raises(FormatError, match=r"made by other settings \(gaussian_embeddings-20x10x64.*--force-recompute"):
        Pairs(other)
    assert len(Pairs(replace(other, force_recompute=True)).training) == 20 * (12 - 3)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_row_is_named_on_load(tmp_path: Path, value: float) -> None:
    settings = in_folder(tmp_path)
    Pairs(settings)
    (path,) = tmp_path.iterdir()
    content = torch.load(path, weights_only=True)
    content["embeddings"][37, 3] = value
    torch.save(content, path)
    with pytest.raises(FormatError, match=r"NaN [01], Inf [01], min .*first of 1 bad rows is 37.*--force-recompute"):
        Pairs(settings)
    assert Pairs(settings, check=unchecked).training.isfinite().logical_not().sum() == 1


def test_a_file_that_is_no_cache_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    settings = in_folder(tmp_path)
    path = Cache.of(settings, "gaussian_embeddings").path
    path.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(FormatError, match=f"{re.escape(str(path))}: no cache of embeddings, --force-recompute"):
        Pairs(settings)


def test_what_is_logged_on_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="nantrap_systems.temi.data"):
        Pairs(in_folder(tmp_path))
    assert "200 embeddings: NaN 0, Inf 0, min -" in caplog.text
    assert summary(torch.tensor([[1.0, torch.nan], [torch.inf, -2.0]])) == "2 embeddings: NaN 1, Inf 1, min -2, max 1"
    assert summary(torch.full((1, 2), torch.nan)).endswith("min none, max none")


def test_batches_by_number_and_seed_alone(pairs: Pairs) -> None:
    first, again = pairs.batch(3, size=8, seed=1), pairs.batch(3, size=8, seed=1)
    assert first.x.shape == first.neighbour.shape == (8, 64)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.x, pairs.batch(4, size=8, seed=1).x)
    assert not torch.equal(first.x, pairs.batch(3, size=8, seed=2).x)


def test_held_out_points_are_not_trained_on(pairs: Pairs) -> None:
    assert pairs.held_out.x.shape == (400, 64)
    assert torch.cdist(pairs.held_out.x, pairs.training).min() > 1
    assert torch.equal(pairs.labels.bincount(), torch.full((20,), 20))


def test_zeros_pass_the_check_and_nan_does_not() -> None:
    blank, _ = blank_images(Settings())
    assert (blank.norm(dim=-1) == 0).sum() == 2
    check_embeddings(blank, Path("cache.pt"))
    unreadable, _ = one_unreadable(Settings())
    with pytest.raises(FormatError, match="bad rows is 147"):
        check_embeddings(unreadable, Path("cache.pt"))
