"""Every fault: the damage is as described, the remedies fail as described, the guard names it and the run continues.

The maps are smaller than in the demo: 32x32, batches of 4, 15 steps.
"""

from __future__ import annotations

import functools
import math

import pytest
import torch

from nantrap_systems import load_system
from nantrap_systems.radiodiff.faults import (
    BAD_STEP,
    LOG_PLUS_EPS,
    around_the_wrapper,
    clamped_weights,
    floor_as_factor,
    unscaled_attention,
)
from nantrap_systems.radiodiff.settings import TrainerSettings
from nantrap_systems.showcase import Showcase, show
from nantrap_systems.training import train

SMALL = {"data.image_size": 32, "data.batch_size": 4, "data.maps": 68, "first_stage.train_num_steps": 30}
STEPS, SEED = 15, 2
SOONER = {"min_lr_factor": {"trainer.train_num_steps": 6}}
"""What makes a fault come within so few steps."""
SYSTEM = load_system("radiodiff")
NAN_FAULTS = ("log_zero_time", "amp_without_scaler", "empty_first_batch", "nan_pixel")
SILENT_FAULTS = ("png_scale", "min_lr_factor")


@functools.cache
def shown(name: str) -> Showcase:
    changes = {**SMALL, **SOONER.get(name, {})}
    return show(SYSTEM, SYSTEM.fault(name), steps=STEPS, seed=SEED, changes=changes, quiet=True)


def test_all_faults_are_here() -> None:
    others = ("unscaled_attention", "poisoned_batchnorm", "around_ddp", "sampler_below_zero")
    assert {fault.name for fault in SYSTEM.faults} == {*NAN_FAULTS, *SILENT_FAULTS, *others}


@pytest.mark.parametrize("name", NAN_FAULTS)
def test_clean_is_healthy_and_plain_ends_in_nan(name: str) -> None:
    clean, plain = shown(name).result("clean"), shown(name).result("plain")
    assert clean.state_finite
    assert clean.applied == STEPS
    assert clean.first_bad is None
    assert not plain.state_finite
    assert plain.applied == STEPS, "every step was taken, the fatal one and all after it"
    assert math.isnan(plain.final_loss)
    assert plain.quality == 0


@pytest.mark.parametrize("name", NAN_FAULTS)
def test_lowering_the_learning_rate_and_clipping_harder_touches_nothing(name: str) -> None:
    careful, plain = shown(name).result("lower lr and clip"), shown(name).result("plain")
    assert not careful.state_finite
    assert careful.first_bad == plain.first_bad


@pytest.mark.parametrize("name", [*NAN_FAULTS, "poisoned_batchnorm"])
def test_the_guard_keeps_the_run_alive_and_close_to_clean(name: str) -> None:
    clean, guarded = shown(name).result("clean"), shown(name).result("nantrap")
    assert guarded.state_finite
    assert not guarded.stopped
    assert guarded.incidents >= 1
    assert guarded.applied + guarded.incidents == STEPS
    assert abs(guarded.held_out_loss - clean.held_out_loss) < 0.25 * clean.held_out_loss


@pytest.mark.parametrize(
    "name", [fault.name for fault in SYSTEM.faults if fault.cause is not None and fault.processes == 1]
)
def test_the_guard_names_place_and_cause_and_proves_it(name: str) -> None:
    assert shown(name).named, shown(name).incident
    assert shown(name).proven


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("log_zero_time", "return torch.log(t_B) / 4"),
        ("unscaled_attention", "return torch.softmax(query @ key.transpose(-1, -2), dim=-1) @ value"),
        ("empty_first_batch", "return 1.0 / latent.flatten().std()"),
    ],
)
def test_the_guard_points_at_the_line_that_is_wrong(name: str, line: str) -> None:
    incident = shown(name).incident
    assert incident is not None
    assert incident.source is not None
    assert incident.source.text.strip() == line


@pytest.mark.parametrize(("name", "tensor"), [("nan_pixel", "image"), ("poisoned_batchnorm", "condition")])
def test_the_guard_names_the_tensor(name: str, tensor: str) -> None:
    incident = shown(name).incident
    assert incident is not None
    assert [finding.name for finding in incident.findings if finding.kind == "batch"] == [tensor]


# ---- log_zero_time


def test_weights_were_never_near_100() -> None:
    w1, w2 = clamped_weights(torch.linspace(0, 1, 101))
    assert w1.max() < 5.44
    assert w2.max() < 2.72
    clamped, plain = shown("log_zero_time").result("weights at 100"), shown("log_zero_time").result("plain")
    assert clamped.first_bad == plain.first_bad
    assert not clamped.state_finite


def test_nan_to_num_of_the_prediction_hides_a_dead_model() -> None:
    filled = shown("log_zero_time").result("nan_to_num(pred)")
    assert not filled.state_finite
    assert filled.first_bad is None, "the training loss stays finite to the end"
    assert filled.quality == 0


def test_a_clamp_passes_nan_and_has_no_gradient_outside() -> None:
    assert not shown("log_zero_time").result("clamp(pred, 1e6)").state_finite
    x = torch.tensor([math.nan, 2e6], requires_grad=True)
    clamped = x.clamp(-1e6, 1e6)
    clamped[1].backward()
    assert clamped[0].isnan()
    assert x.grad is not None
    assert x.grad[1] == 0
    assert torch.tensor(1e6).half().isinf(), "and float16 cannot hold the bound"


def test_a_loss_of_zero_keeps_the_weights_and_not_the_statistics() -> None:
    for name in ("log_zero_time", "poisoned_batchnorm"):
        zeroed = shown(name).result("zero loss")
        assert zeroed.first_bad is None
        assert not zeroed.state_finite
        assert math.isnan(zeroed.held_out_loss)
        assert math.isfinite(zeroed.final_loss)


def test_zeroed_gradients_in_an_accumulation_loop_still_move_adamw() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.square().sum().backward()
    optimizer.step()
    before = weight.detach().clone()
    optimizer.zero_grad(set_to_none=False)  # as the loop does between windows, and then `continue`
    optimizer.step()
    assert (weight != before).all()


def test_an_epsilon_inside_the_logarithm_holds_in_float32() -> None:
    run = SYSTEM.run(fault=SYSTEM.fault("log_zero_time"), remedy=LOG_PLUS_EPS, changes=SMALL, seed=SEED)
    assert all(math.isfinite(step.loss) for step in train(run, steps=STEPS))
    assert math.isfinite(run.evaluate().loss)
    assert (torch.tensor(0.0, dtype=torch.float16) + 1e-8).log().isinf(), "not in float16"


# ---- precision


def test_a_scaler_skips_the_overflow_and_batchnorm_keeps_it() -> None:
    scaled = shown("amp_without_scaler").result("fp16: true")
    assert BAD_STEP in scaled.skipped
    assert math.isnan(scaled.held_out_loss)
    assert not scaled.state_finite


def test_65535_fits_into_bfloat16_and_not_into_float16() -> None:
    assert torch.tensor(65_535.0).half().isinf()
    assert torch.tensor(65_535.0).bfloat16().isfinite()
    assert shown("amp_without_scaler").result("plain").first_bad == BAD_STEP
    incident = shown("amp_without_scaler").incident
    assert incident is not None
    assert incident.step == BAD_STEP
    assert incident.module == "unet.condition.stem.0"


def test_entries_of_64_in_16_dimensions_overflow_float16() -> None:
    for size, fits in ((63, True), (64, False)):
        q = torch.full((1, 1, 16), float(size)).half()
        assert unscaled_attention(q, q, q).isfinite().all() == fits


def test_attention_that_overflows_is_a_dead_run() -> None:
    case = shown("unscaled_attention")
    for name in ("plain", "lower lr and clip"):
        assert case.result(name).applied == 0
        assert case.result(name).quality == 0
    assert case.result("nan_to_num(scores)").state_finite
    guarded = case.result("nantrap")
    assert guarded.stopped
    assert guarded.state_finite, "the statistics of BatchNorm are as they were"
    assert guarded.steps < STEPS


# ---- state and data


def test_skipping_does_not_bring_an_infinite_scale_back() -> None:
    case = shown("empty_first_batch")
    assert case.result("skip bad steps").applied == 0
    assert case.result("nan_to_num(input)").first_bad == 1, "the first loss looks fine"
    assert case.result("nantrap").applied == STEPS - 1, "the second batch decides the scale"


def test_a_skipped_step_leaves_nan_in_batchnorm() -> None:
    plain = shown("poisoned_batchnorm").result("plain")
    assert plain.applied == STEPS - 1
    assert math.isfinite(plain.final_loss), "training looks fine"
    assert math.isnan(plain.held_out_loss)
    assert not plain.state_finite
    run = SYSTEM.run(fault=SYSTEM.fault("poisoned_batchnorm"), changes=SMALL, seed=SEED)
    list(train(run, steps=STEPS))
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    bad = {name for name, buffer in run.model.named_buffers() if not buffer.isfinite().all()}
    assert bad
    assert all("running_" in name for name in bad)


def test_nan_to_num_of_the_loss_reads_zero_and_of_the_image_holds() -> None:
    case = shown("nan_pixel")
    filled = case.result("nan_to_num(loss)")
    assert not filled.state_finite
    assert filled.first_bad is None
    assert filled.final_loss == 0
    assert not case.result("nan_to_num(pred)").state_finite
    image = case.result("nan_to_num(image)")
    assert image.state_finite
    assert abs(image.held_out_loss - case.result("clean").held_out_loss) < 0.1 * case.result("clean").held_out_loss


# ---- silent


@pytest.mark.parametrize("name", SILENT_FAULTS)
def test_a_silent_fault_is_finite_worse_and_no_incident(name: str) -> None:
    clean, plain, guarded = (shown(name).result(each) for each in ("clean", "plain", "nantrap"))
    assert plain.state_finite
    assert plain.applied == STEPS
    assert plain.held_out_loss > clean.held_out_loss + 0.1
    assert guarded.incidents == 0
    assert guarded.held_out_loss == plain.held_out_loss, "the guard changes nothing here, and says so"


def test_the_floor_is_a_product_of_two_rates() -> None:
    trainer = TrainerSettings(lr=5e-5, min_lr=5e-6)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=trainer.lr)
    (factor,) = floor_as_factor(optimizer, trainer).lr_lambdas
    assert trainer.lr * factor(10**6) == pytest.approx(2.5e-10)


def test_a_sampler_with_a_negative_step_is_seen_in_samples_alone() -> None:
    case = shown("sampler_below_zero")
    assert case.result("clean").quality > 0.05
    plain = case.result("plain")
    assert plain.state_finite
    assert math.isfinite(plain.held_out_loss)
    assert plain.quality == 0, "NaN is never right"
    assert case.result("N = 20").quality > 0.05
    assert case.named, "and the guard has nothing to say of it"


# ---- ranks


def test_one_process_has_nothing_to_go_round() -> None:
    run = SYSTEM.run(changes=SMALL)
    assert around_the_wrapper(run.model, run.window(0)[0])["loss_simple"].isfinite()


@pytest.mark.slow
def test_going_round_ddp_makes_the_ranks_differ() -> None:
    case = shown("around_ddp")
    assert case.result("clean").ranks_agree
    for name in ("plain", "lower lr and clip", "nantrap"):
        assert not case.result(name).ranks_agree
        assert case.result(name).state_finite
    assert case.named
    assert case.proven
