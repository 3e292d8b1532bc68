"""The model: its start, its mask, its loss, and that it learns."""

from __future__ import annotations

import pytest
import torch

from nantrap.ops import masked_mse
from nantrap_systems import baselines, load_system
from nantrap_systems.pixeldlm.data import Batch, Texts, decode
from nantrap_systems.pixeldlm.loss import (
    RECOVERY_TIME,
    denoise,
    denoising_loss,
    evaluate,
    evaluation_noise,
    read,
    recovered,
)
from nantrap_systems.pixeldlm.model import PixelDLM, any_pixel, positions_2d
from nantrap_systems.pixeldlm.settings import DataSettings, DiffusionSettings, ModelSettings
from nantrap_systems.training import train


@pytest.fixture
def model() -> PixelDLM:
    return PixelDLM(ModelSettings(hidden_size=32))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Texts(DataSettings(), slots=2).batch(0, size=6, seed=1)


def awake(model: PixelDLM) -> PixelDLM:
    """A model that is no longer at its start."""
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def predict(model: PixelDLM, batch: Batch) -> torch.Tensor:
    noise = torch.randn(batch.image.shape, generator=torch.Generator().manual_seed(3))
    return denoise(model, batch, torch.full((len(batch.image),), 0.3), noise, DiffusionSettings(), None)


def test_every_block_is_the_identity_at_the_start(model: PixelDLM) -> None:
    x, time, mask = torch.randn(2, 18, 32), torch.randn(2, 32), torch.ones(2, 18, dtype=torch.bool)
    for block in model.blocks:
        assert torch.equal(block(x, time, mask), x)


def test_patches_round_trip(model: PixelDLM) -> None:
    image = torch.randn(2, 16, 16, 3)
    patches = model._to_patches(image)
    assert patches.shape == (2, 16, 48)
    assert torch.equal(model._to_image(patches), image)
    assert torch.equal(patches[0, 1].reshape(4, 4, 3), image[0, :4, 4:8])


def test_a_patch_counts_if_it_holds_a_token() -> None:
    assert any_pixel(torch.tensor([[[True, False], [False, False]]])).tolist() == [[True, False]]


def test_positions_are_distinct() -> None:
    positions = positions_2d(4, 32)
    assert positions.shape == (16, 32)
    assert torch.cdist(positions, positions).add(torch.eye(16)).min() > 0.1


def test_padding_changes_nothing_and_gets_nothing(model: PixelDLM, batch: Batch) -> None:
    model = awake(model)
    poisoned = batch._replace(image=batch.image.masked_fill(~batch.mask[..., None], 1e4))
    assert torch.equal(predict(model, batch), predict(model, poisoned))
    assert bool((predict(model, batch)[~batch.mask] == 0).all())


def test_a_text_without_anything_to_attend_to_is_finite(model: PixelDLM, batch: Batch) -> None:
    model = awake(model)
    nothing = batch._replace(mask=batch.mask & False, condition_mask=batch.condition_mask & False)
    loss = denoising_loss(model, nothing, diffusion=DiffusionSettings())
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_samples_do_not_see_each_other(model: PixelDLM, batch: Batch) -> None:
    model = awake(model)
    one = Batch(*(part[:1] for part in batch))
    noise = torch.zeros_like(batch.image)
    t = torch.full((6,), 0.3)
    together = denoise(model, batch, t, noise, DiffusionSettings(), None)[:1]
    alone = denoise(model, one, t[:1], noise[:1], DiffusionSettings(), None)
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_noise_goes_from_none_to_all(schedule: str) -> None:
    alpha = DiffusionSettings(noise_schedule=schedule).alpha(torch.tensor([0.0, 0.5, 1.0]))
    assert alpha[0] > 0.999
    assert alpha[1].item() == pytest.approx(0.5, abs=0.01)
    assert alpha[2] < 1e-5


def test_recovery_counts_tokens(batch: Batch) -> None:
    assert recovered(batch.image, batch) == 1.0
    assert recovered(torch.full_like(batch.image, torch.nan), batch) == 0.0
    assert recovered(batch.image + 0.01, batch) == 1.0


def test_the_loss_is_the_formula(model: PixelDLM, batch: Batch) -> None:
    predicted, mask = torch.randn_like(batch.image), batch.mask[..., None].double()
    formula = (mask * (predicted.double() - batch.image) ** 2).sum() / (3 * mask.sum())
    assert masked_mse(predicted, batch.image, batch.mask[..., None]).item() == pytest.approx(formula.item(), rel=1e-6)


def test_it_learns() -> None:
    """It begins as good as the unigram decoder (60 % of the tokens) and reads 71 to 76 % after 50 steps."""
    run = load_system("pixeldlm").run()
    trivial = baselines.pixeldlm(run)
    assert trivial["the noisy input"] < 0.3
    assert trivial["unigram decoder"] == pytest.approx(0.6, abs=0.02)
    before = run.evaluate()
    assert before.quality == pytest.approx(trivial["unigram decoder"], abs=0.02)
    for _ in train(run, steps=50):
        pass
    after = run.evaluate()
    assert after.loss < before.loss - 0.05
    assert after.quality > trivial["unigram decoder"] + 0.06
    assert after.quality > trivial["the noisy input"] + 0.4


def test_it_is_nearer_to_the_clean_image_than_its_noisy_input(model: PixelDLM, batch: Batch) -> None:
    mask, t_B = batch.mask[..., None], torch.full((6,), RECOVERY_TIME)
    noise = torch.randn(batch.image.shape, generator=torch.Generator().manual_seed(0))
    found = denoise(model, batch, t_B, noise, DiffusionSettings(), None)
    share = DiffusionSettings().alpha(torch.tensor(RECOVERY_TIME))
    noisy = share * batch.image + (1 - share) * evaluation_noise(batch)
    assert masked_mse(found, batch.image, mask) < 0.75 * masked_mse(noisy, batch.image, mask)


def test_what_is_read_are_characters(model: PixelDLM, batch: Batch) -> None:
    found = read(model, batch, torch.full((6,), 0.001), torch.randn_like(batch.image), DiffusionSettings(), None)
    assert torch.equal(decode(found[0], batch.mask[0]), decode(batch.image[0], batch.mask[0]))


def test_evaluation_under_autocast(model: PixelDLM, batch: Batch) -> None:
    found = evaluate(model, batch, diffusion=DiffusionSettings(), dtype=torch.bfloat16)
    assert found.loss == pytest.approx(evaluate(model, batch, diffusion=DiffusionSettings()).loss, rel=0.05)
