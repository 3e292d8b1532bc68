"""The model: its start, who sees whom, the formulas of the loss, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from nantrap.checkpoints import CheckpointStore
from nantrap.errors import UsageError
from nantrap.ops import cosine_schedule
from nantrap_systems import baselines, load_system
from nantrap_systems.latentdlm.data import MASK, TEXT_TO_LATENT, UNCONDITIONAL, Batch, Texts
from nantrap_systems.latentdlm.loss import (
    Noised,
    TrainingLoss,
    accuracy,
    latent_mse,
    masked_cross_entropy,
    noise,
    predict,
)
from nantrap_systems.latentdlm.model import LatentDLM, joint_mask
from nantrap_systems.latentdlm.settings import DataSettings, LossSettings, ModelSettings
from nantrap_systems.script import main
from nantrap_systems.training import guard_of, mean_of_last, total, train

SYSTEM = load_system("latentdlm")
SMALL = {"model.hidden_size": 32, "model.depth": 1, "training.train_batch_size": 4}


@pytest.fixture(scope="module")
def texts() -> Texts:
    return Texts(DataSettings(drop_empty=False))


@pytest.fixture
def batch(texts: Texts) -> Batch:
    return texts.batch(0, size=6, seed=1)


@pytest.fixture
def model() -> LatentDLM:
    """A model that is no longer at its start."""
    made = LatentDLM(ModelSettings(hidden_size=32), DataSettings())
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return made


def noised(batch: Batch, time: float = 0.5) -> Noised:
    t_B = torch.full((len(batch.tokens),), time)
    return noise(batch, t_B, t_B, torch.rand(batch.tokens.shape), torch.randn(batch.latent.shape), cosine_schedule)


def test_every_block_is_the_identity_at_the_start() -> None:
    made = LatentDLM(ModelSettings(hidden_size=32), DataSettings())
    text, latent, times = torch.randn(2, 64, 32), torch.randn(2, 1, 32), torch.randn(2, 32)
    for block in made.blocks:
        after = block(text, latent, times, torch.ones(2, 65, 65, dtype=torch.bool))
        assert torch.equal(after[0], text)
        assert torch.equal(after[1], latent)


def test_text_and_latent_see_each_other_only_under_a_condition() -> None:
    real = torch.tensor([[True, True, False]]).expand(2, -1)
    mask = joint_mask(real, torch.tensor([UNCONDITIONAL, TEXT_TO_LATENT]))
    assert mask[0].int().tolist() == [[1, 1, 0, 0]] * 3 + [[0, 0, 0, 1]]
    assert mask[1].int().tolist() == [[1, 1, 0, 1]] * 4


def test_an_unconditional_text_knows_nothing_of_its_latent(model: LatentDLM, batch: Batch) -> None:
    for mode, same in ((UNCONDITIONAL, True), (TEXT_TO_LATENT, False)):
        chosen = batch._replace(mode=torch.full_like(batch.mode, mode))
        seen = noised(chosen)
        logits, _ = predict(model, chosen, seen, None)
        others, _ = predict(model, chosen, seen._replace(latent=-seen.latent), None)
        assert torch.equal(logits, others) is same


def test_a_text_without_anything_to_attend_to_is_finite(model: LatentDLM, batch: Batch) -> None:
    nothing = batch._replace(attention_mask=batch.attention_mask & False, mode=torch.zeros_like(batch.mode))
    loss = total(TrainingLoss(model, LossSettings())(nothing))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_what_a_mode_keeps_clean_is_clean_and_does_not_count(batch: Batch) -> None:
    both, text, latent = (batch._replace(mode=torch.full_like(batch.mode, mode)) for mode in range(3))
    assert noised(both).masked.any()
    assert bool(noised(both).counts.all())
    assert torch.equal(noised(text).latent, text.latent)
    assert not noised(text).counts.any()
    assert torch.equal(noised(latent).tokens, latent.tokens)
    assert not noised(latent).masked.any()


def test_bytes_are_masked_with_the_probability_of_their_time(texts: Texts) -> None:
    batch = texts.batch(0, size=400, seed=1, mode="latent_to_text")
    seen = noised(batch, 0.25)
    assert seen.masked[batch.attention_mask].float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert bool((seen.tokens[seen.masked] == MASK).all())
    assert not (seen.masked & ~batch.attention_mask).any()


def test_the_terms_are_the_formulas(model: LatentDLM, batch: Batch) -> None:
    batch = batch._replace(mode=torch.zeros_like(batch.mode))
    seen = noised(batch)
    logits, predicted = predict(model, batch, seen, None)
    every = F.cross_entropy(logits.transpose(1, 2), batch.tokens, reduction="none")
    formula = (every * seen.masked).sum() / seen.masked.sum()
    assert masked_cross_entropy(logits, batch.tokens, seen.masked).item() == pytest.approx(formula.item(), rel=1e-5)
    a = seen.alpha_bar[:, None]
    targets = {
        "epsilon": seen.noise,
        "velocity": a.sqrt() * seen.noise - (1 - a).sqrt() * batch.latent,
        "sample": batch.latent,
    }
    for name, target in targets.items():
        found = latent_mse(predicted, batch, seen, name).item()
        assert found == pytest.approx(F.mse_loss(predicted, target).item(), rel=1e-5)


def test_terms_are_weighted_and_scaled(model: LatentDLM, batch: Batch) -> None:
    plain = TrainingLoss(model, LossSettings())
    torch.manual_seed(3)
    terms = plain(batch)
    scaled = TrainingLoss(model, LossSettings(loss_scale=4.0, text_loss_weight=0.5, latent_loss_weight=0.0))
    torch.manual_seed(3)
    others = scaled(batch)
    assert not isinstance(terms, torch.Tensor)
    assert not isinstance(others, torch.Tensor)
    assert [*terms] == ["text", "latent"]
    assert [*others] == ["text"]
    assert others["text"].item() == pytest.approx(2 * terms["text"].item())


def test_nothing_masked_is_zero_with_gradient_zero(model: LatentDLM, batch: Batch) -> None:
    logits, _ = predict(model, batch, noised(batch), None)
    loss = masked_cross_entropy(logits, batch.tokens, torch.zeros_like(batch.tokens, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_accuracy_counts_bytes_and_nan_is_wrong() -> None:
    tokens, masked = torch.tensor([[1, 2, 3]]), torch.tensor([[True, True, False]])
    logits = F.one_hot(torch.tensor([[1, 5, 3]]), 257).float()
    assert accuracy(logits, tokens, masked) == 0.5
    assert accuracy(logits * math.nan, tokens, masked) == 0.0


def test_it_learns() -> None:
    """In 50 steps the loss falls from 6.8 to about 3, and 45 to 55 % of the bytes are guessed; spaces are 16 %."""
    run = SYSTEM.run()
    before = run.evaluate()
    losses = [step.loss for step in train(run, steps=50)]
    after = run.evaluate()
    assert losses[0] > 6
    assert mean_of_last(losses) < 4.1
    assert before.loss > 6
    assert before.quality < 0.02
    assert after.loss < 3.9
    assert after.quality > max(baselines.latentdlm(run).values()) + 0.12


def test_the_learning_rate_follows_a_cosine_after_the_warm_up() -> None:
    settings = SYSTEM.settings().training
    assert [settings.lr_factor(step) for step in (0, 9, 5000)] == pytest.approx([0.1, 1.0, 1.0])
    cosine = replace(settings, lr_schedule="cosine", warmup_steps=10, num_train_steps=110)
    assert [cosine.lr_factor(step) for step in (0, 9, 60, 110, 500)] == pytest.approx([0.1, 1.0, 0.5, 0.0, 0.0])


def test_a_learned_schedule_is_trained_and_safe_at_time_zero() -> None:
    run = SYSTEM.run(changes={**SMALL, "model.learned_schedule": True, "training.dtype": "bf16"})
    rate = run.model.get_parameter("schedule.rate")
    before = rate.item()
    assert all(math.isfinite(step.loss) for step in train(run, steps=3))
    assert rate.item() != before
    (batch, *_) = run.window(0)
    zero = torch.zeros(len(batch.tokens))
    schedule = cast(Any, run.model).schedule
    seen = noise(batch, zero, zero, torch.rand(batch.tokens.shape), torch.randn(batch.latent.shape), schedule)
    seen.latent.sum().backward()
    assert rate.grad is not None
    assert rate.grad.isfinite()


@pytest.mark.parametrize("mode", ["unconditional", "latent_to_text", "text_to_latent"])
@pytest.mark.parametrize("prediction", ["epsilon", "velocity", "sample"])
def test_every_mode_and_prediction_learns(mode: str, prediction: str) -> None:
    run = SYSTEM.run(changes={**SMALL, "training.mode": mode, "loss.latent_prediction": prediction})

    def unseen() -> float:
        """The loss of batches that are not trained on, always at the same times and with the same noise."""
        torch.manual_seed(0)
        with torch.no_grad():
            batches = [batch for step in range(1000, 1008) for batch in run.window(step)]
            return sum(total(run.loss(batch)).item() for batch in batches) / len(batches)

    before = unseen()
    for _ in train(run, steps=30):
        pass
    least = 0.005 if mode == "text_to_latent" else 0.5  # text begins at 6, a latent alone at 1
    assert unseen() < before - least


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "pure_bf16"])
def test_every_precision_trains(dtype: str) -> None:
    run = SYSTEM.run(changes={**SMALL, "training.dtype": dtype})
    list(train(run, steps=2))
    kinds = {parameter.dtype for parameter in run.model.parameters()}
    assert kinds == {torch.bfloat16 if dtype == "pure_bf16" else torch.float32}
    assert math.isfinite(run.evaluate().loss)


def test_evaluation_leaves_the_random_stream_and_the_mode_alone() -> None:
    run = SYSTEM.run(changes=SMALL)
    before = torch.get_rng_state()
    assert run.evaluate() == run.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
    assert run.model.training


def test_guarded_and_plain_are_bit_identical() -> None:
    plain, guarded = SYSTEM.run(changes=SMALL), SYSTEM.run(changes=SMALL)
    torch.manual_seed(5)
    losses = [step.loss for step in train(plain, steps=6)]
    torch.manual_seed(5)
    with guard_of(guarded, quiet=True) as guard:
        steps = list(train(guarded, steps=6, guard=guard))
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)
    for left, right in zip(plain.model.parameters(), guarded.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    options = [f"--set={name}={value}" for name, value in SMALL.items()]

    def script(folder: str, *more: str) -> None:
        assert main(SYSTEM, ["--run-dir", str(tmp_path / folder), *options, *more]) == 0

    script("whole", "--steps=6")
    script("parts", "--steps=2")
    script("parts", "--steps=4", "--resume=last_good")
    runs = [SYSTEM.run(changes=SMALL) for _ in range(2)]
    for run, folder in zip(runs, ("whole", "parts"), strict=True):
        CheckpointStore(tmp_path / folder / "checkpoints").load(model=run.model)
    for left, right in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.dtype": "fp8"}, "choose fp32, bf16"),
        ({"training.lr_schedule": "step"}, "choose constant or cosine"),
        ({"loss.latent_prediction": "score"}, "choose epsilon, velocity or sample"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SYSTEM.run(changes=changes)
