"""The model: shapes, the formulas of the specification, and that it learns."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from nantrap.errors import MissingExtraError, UsageError
from nantrap.ops import decoupled_weights
from nantrap_systems import baselines, load_system
from nantrap_systems.radiodiff.autoencoder import AutoencoderKL, first_stage
from nantrap_systems.radiodiff.data import Maps
from nantrap_systems.radiodiff.faults import launched, precision_of_trainer, time_steps_below_zero
from nantrap_systems.radiodiff.loss import decoupled_terms, within
from nantrap_systems.radiodiff.model import (
    Latents,
    attend,
    log_time,
    one_over_std,
    preconditioned,
    time_steps,
    uniform_times,
)
from nantrap_systems.radiodiff.settings import (
    DataSettings,
    FirstStageSettings,
    TrainerSettings,
    mixed_precision_in,
    precision_of_both_files,
)
from nantrap_systems.radiodiff.train import floored_decay, warmed_average
from nantrap_systems.script import main
from nantrap_systems.training import guard_of, train

SYSTEM = load_system("radiodiff")
SMALL = {"data.image_size": 32, "data.batch_size": 4, "data.maps": 68, "first_stage.train_num_steps": 30}


def test_the_first_stage_is_four_times_smaller_and_its_variance_is_bounded() -> None:
    model = AutoencoderKL(FirstStageSettings())
    posterior = model.encode(1e6 * torch.randn(2, 1, 64, 64))
    assert posterior.mean.shape == (2, 3, 16, 16)
    assert posterior.logvar.min() >= -30
    assert posterior.logvar.max() <= 20
    assert model.decode(posterior.mean).shape == (2, 1, 64, 64)


def test_the_first_stage_is_trained_frozen_and_shared() -> None:
    settings, data = FirstStageSettings(train_num_steps=30), DataSettings(image_size=32, maps=68)
    before = torch.get_rng_state()
    trained = first_stage(settings, data, 8)
    assert torch.equal(torch.get_rng_state(), before)
    assert trained is first_stage(settings, data, 8)
    assert not any(parameter.requires_grad for parameter in trained.parameters())
    image = Maps(data).held_out.image
    untrained = AutoencoderKL(settings)
    error = (trained.decode(trained.encode(image).mean) - image).abs().mean()
    assert error < 0.6 * (untrained.decode(untrained.encode(image).mean) - image).abs().mean()


def test_an_empty_map_has_a_latent_that_is_not_constant() -> None:
    trained = first_stage(FirstStageSettings(train_num_steps=30), DataSettings(image_size=32, maps=68), 8)
    assert trained.encode(torch.full((2, 1, 32, 32), -1.0)).mean.std() > 0.1


def test_latents_fade_along_a_line_while_noise_comes_in() -> None:
    start, noise = torch.randn(3, 3, 4, 4), torch.randn(3, 3, 4, 4)
    at = Latents(start, torch.tensor([0.0, 0.25, 1.0]), noise)
    assert torch.equal(at.noisy[0], start[0])
    torch.testing.assert_close(at.noisy[1], 0.75 * start[1] + 0.5 * noise[1])
    torch.testing.assert_close(at.noisy[2], noise[2])


def test_preconditioning() -> None:
    x, u1, u2 = torch.randn(3, 2, 3, 4, 4).unbind(1)[0], torch.randn(3, 3, 4, 4), torch.randn(3, 3, 4, 4)
    t = torch.tensor([0.0, 0.36, 1.0])
    drift, noise = preconditioned(x, t, u1, u2)
    length = math.sqrt(0.36**2 + 1)
    torch.testing.assert_close(drift[1], 0.64 * x[1] + 0.36 / length * u1[1])
    torch.testing.assert_close(noise[1], 0.6 * x[1] + 0.8 / length * u2[1])
    torch.testing.assert_close(drift[0], x[0])
    torch.testing.assert_close(noise[2], x[2])


def test_the_loss_is_the_formula_and_its_weights_never_explode() -> None:
    latents = Latents(torch.randn(4, 3, 4, 4), torch.tensor([1e-4, 0.2, 0.6, 1.0]), torch.randn(4, 3, 4, 4))
    drift, noise = torch.randn(4, 3, 4, 4), torch.randn(4, 3, 4, 4)
    terms = decoupled_terms(latents, drift, noise, vlb_weight=0.5)
    by_hand = []
    for i, t in enumerate(latents.t_B.tolist()):
        c, e = (drift[i] + latents.start[i]).abs(), (noise[i] - latents.noise[i]).abs()
        by_hand.append(0.5 * (2 * math.exp(1 - t) * (c**2 + c) + math.exp(math.sqrt(t)) * (e**2 + e)).mean())
    torch.testing.assert_close(terms["loss_simple"], torch.stack(by_hand).mean())
    t = latents.t_B[:, None, None, None]
    found = latents.noisy - drift * t - t.sqrt() * noise
    torch.testing.assert_close(terms["loss_vlb"], 0.5 * ((1 - t) * (found - latents.start).abs()).mean())
    assert decoupled_terms(latents, drift, noise)["loss_vlb"] == 0
    w1, w2 = decoupled_weights(torch.linspace(0, 1, 1001))
    assert w1.max() < 5.44
    assert w2.max() < 2.72


def test_times_and_their_logarithm_are_finite() -> None:
    t = uniform_times(10_000, 1e-4)
    assert t.min() >= 1e-4
    assert t.max() <= 1
    assert log_time(torch.tensor([0.0, 1.0])).isfinite().all()


def test_a_sampler_of_many_steps_has_no_negative_step() -> None:
    eps = 0.05
    for count in (1, 5, 19, 21, 50):
        assert min(time_steps(count, eps)) > 0
        assert sum(time_steps(count, eps)) == pytest.approx(1)
    assert min(time_steps_below_zero(19, eps)) > 0
    assert min(time_steps_below_zero(21, eps)) < 0


def test_a_negative_step_samples_nan() -> None:
    run = SYSTEM.run(changes={**SMALL, "model.sampling_timesteps": 12, "model.eps": 0.1})
    list(train(run, steps=1))
    model: Any = run.model.eval()
    condition = torch.zeros(1, 3, 32, 32)
    good = model.sample(condition, generator=torch.Generator().manual_seed(0))
    bad = model.sample(condition, generator=torch.Generator().manual_seed(0), steps=time_steps_below_zero)
    assert good.isfinite().all()
    assert bad.isnan().all()


def test_attention_has_its_scale_and_survives_what_float16_cannot_hold() -> None:
    q, k, v = (torch.randn(2, 2, 5, 16) for _ in range(3))
    torch.testing.assert_close(attend(q, k, v), torch.softmax(q @ k.mT / 4, -1) @ v)
    with torch.autocast("cpu", torch.float16):
        assert attend(100 * q.half(), 100 * k.half(), v.half()).isfinite().all()


def test_the_scale_of_the_first_batch() -> None:
    assert one_over_std(4 * torch.randn(10_000)) == pytest.approx(0.25, rel=0.05)
    assert one_over_std(torch.zeros(8)) == 1
    run = SYSTEM.run(changes=SMALL)
    assert run.model.scale_factor == 0
    list(train(run, steps=1))
    decided = run.model.scale_factor.clone()
    list(train(run, steps=2, start=1))
    assert run.model.scale_factor == decided > 0
    assert SYSTEM.run(changes={**SMALL, "model.scale_by_std": False}).model.scale_factor == pytest.approx(0.3)


def test_the_settings_of_the_trainer() -> None:
    file = SYSTEM.config.with_name("accelerate.yaml")
    for trainer, dtype in (
        (TrainerSettings(), None),
        (TrainerSettings(amp=True), torch.bfloat16),
        (TrainerSettings(amp=True, fp16=True), torch.float16),
    ):
        assert precision_of_both_files(trainer, file).dtype == dtype
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=5e-3)
    (factor,) = floored_decay(optimizer, TrainerSettings()).lr_lambdas
    assert factor(0) == 1
    assert 5e-3 * factor(10_000) == pytest.approx(5e-4)
    with pytest.raises(UsageError, match="resume_milestone is -1"):
        TrainerSettings(resume_milestone=-1)


def test_it_learns() -> None:
    """After 60 steps 62 to 67 % of the cells are right within 6 dB; the noisy latent has 51 %, a constant 41 %."""
    run = SYSTEM.run()
    losses = [step.loss for step in train(run, steps=1)]
    before = run.evaluate()
    losses += [step.loss for step in train(run, steps=59, start=1)]
    after = run.evaluate()
    assert sum(losses[-10:]) < 0.75 * sum(losses[:10])
    assert after.loss < 0.6 * before.loss
    constant, noisy = baselines.radiodiff(run).values()
    assert 0.3 < constant < 0.5
    assert 0.4 < noisy < 0.6
    assert after.quality > max(constant, noisy) + 0.05


def test_the_averaged_weights_are_evaluated_and_are_an_average() -> None:
    run = SYSTEM.run(changes=SMALL)
    assert run.evaluate_ema is not None
    list(train(run, steps=3))
    assert math.isfinite(run.evaluate_ema().loss)
    averaged, current = torch.ones(2), torch.zeros(2)
    warmed_average(0.999)([averaged], [current], 0)
    assert averaged.tolist() == pytest.approx([0.1, 0.1])
    warmed_average(0.999)([averaged], [torch.ones(2)], 10**6)
    assert averaged.tolist() == pytest.approx([0.1009, 0.1009])


def test_an_accelerator_believes_the_argument_and_not_its_file() -> None:
    """`mixed_precision="no"` overrides the bf16 of the file; only without an argument the file counts."""
    pytest.importorskip("accelerate")
    file = SYSTEM.config.with_name("accelerate.yaml")
    assert mixed_precision_in(file) == "bf16"
    assert launched(file, mixed_precision="no").mixed_precision == "no"
    assert launched(file, mixed_precision=None).mixed_precision == "bf16"
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ
    for amp, expected in ((True, torch.float16), (False, torch.float32)):
        asked = precision_of_trainer(TrainerSettings(amp=amp), file)
        with asked.context():
            assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype is expected
        assert asked.dtype == (torch.float16 if amp else None)
    with torch.autocast("cpu"):
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.bfloat16, "nothing is left behind"


def test_without_accelerate_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fault = SYSTEM.fault("amp_without_scaler")
    with pytest.raises(MissingExtraError, match=r"accelerate is not installed.*pip install 'nantrap\[accelerate\]'"):
        SYSTEM.run(fault=fault, changes=SMALL)


def test_the_two_files_of_the_project(tmp_path: Path) -> None:
    """What `accelerate config` wrote may hold more than the trainer asks for."""
    file = tmp_path / "accelerate.yaml"
    file.write_text("debug: false\ndowncast_bf16: 'no'\nmixed_precision: no\ngpu_ids: 1,2\n")
    changes = {**SMALL, "trainer.amp": True, "accelerate_config": str(file)}
    run = SYSTEM.run(changes=changes)
    assert run.facts == ("precision: amp on, fp16 off, accelerate.yaml says no: weights in float32",)
    file.write_text("mixed_precision: fp8\n")
    with pytest.raises(UsageError, match=r"accelerate.yaml: mixed_precision is 'fp8': choose no, bf16, fp16"):
        SYSTEM.run(changes=changes)
    file.write_text("- 1\n")
    with pytest.raises(UsageError, match=r"accelerate.yaml: expected a mapping, got \[1\]"):
        SYSTEM.run(changes=changes)
    with pytest.raises(UsageError, match=r"absent.yaml: cannot be read"):
        SYSTEM.run(changes={**changes, "accelerate_config": "absent.yaml"})


def test_nan_is_never_within() -> None:
    held_out = Maps(DataSettings(maps=34)).held_out
    assert within(held_out.image, held_out) == 1
    assert within(torch.full_like(held_out.image, math.nan), held_out) == 0


def test_evaluation_leaves_the_random_stream_and_the_mode_alone() -> None:
    run = SYSTEM.run(changes=SMALL)
    list(train(run, steps=1))
    before = torch.get_rng_state()
    assert run.evaluate() == run.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
    assert run.model.training
    assert not cast(Any, run.model).first_stage.training


def test_guarded_and_plain_are_the_same_run() -> None:
    plain, guarded = SYSTEM.run(changes=SMALL), SYSTEM.run(changes=SMALL)
    torch.manual_seed(5)
    losses = [step.loss for step in train(plain, steps=4)]
    torch.manual_seed(5)
    with guard_of(guarded, quiet=True) as guard:
        steps = list(train(guarded, steps=4, guard=guard))
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)
    for ours, theirs in zip(plain.model.state_dict().values(), guarded.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script(*options: str) -> None:
        small = [f"--set={name}={value}" for name, value in SMALL.items()]
        assert main(SYSTEM, ["--run-dir", str(tmp_path), *small, *options]) == 0

    script("--steps=4", "--save-every=2")
    script("--steps=2", "--resume=2")  # its schedule is that of a run of four steps as well
    err = capsys.readouterr().err
    evaluations = [line for line in err.splitlines() if line.startswith("evaluation after 4 steps")]
    assert len(evaluations) == 2
    assert evaluations[0] == evaluations[1]
