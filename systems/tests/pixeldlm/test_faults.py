"""Every fault: the damage is as described, the remedies fail as described, the guard names it and the run continues.

The models and images are smaller than in the demo.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import pytest
import torch

from nantrap.ops import AdaLNZero
from nantrap_systems import load_system
from nantrap_systems.measuring import measure
from nantrap_systems.pixeldlm.faults import (
    ADDED_MASK,
    GrownAdaLN,
    HalfAdaLN,
    LargeAdaLN,
    ProjectAdaLN,
    half_loss,
    majority,
)
from nantrap_systems.showcase import Showcase, show
from nantrap_systems.training import train

SMALL = {"model.hidden_size": 32, "model.depth": 1, "model.pixel_size": 16, "training.batch_size": 8}
SHORT = {**SMALL, "training.batch_size": 16}
"""A text that is short needs the whole image."""
SMALLER = {**SMALL, "data.image_size": 8}
STEPS, MORE_STEPS = 16, 30
"""`nantrap run` judges the share of the steps that were skipped in a run of 20 or more."""
SYSTEM = load_system("pixeldlm")
NAN_FAULTS = ("short_text", "mask_product", "half_epsilon", "rmsnorm_zero_rows", "rmsnorm_large_values")
SILENT_FAULTS = ("adaln_scale", "new_scaler", "clip_before_unscale")


@functools.cache
def shown(name: str) -> Showcase:
    changes = SHORT if name == "short_text" else SMALLER
    steps = MORE_STEPS if name == "new_scaler" else STEPS
    return show(SYSTEM, SYSTEM.fault(name), steps=steps, changes=changes, quiet=True)


def test_all_faults_are_here() -> None:
    assert [fault.name for fault in SYSTEM.faults] == [*NAN_FAULTS, *SILENT_FAULTS]


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


@pytest.mark.parametrize("name", NAN_FAULTS)
def test_the_guard_keeps_the_run_alive_and_close_to_clean(name: str) -> None:
    clean, guarded = shown(name).result("clean"), shown(name).result("nantrap")
    assert guarded.state_finite
    assert not guarded.stopped
    assert guarded.applied + guarded.incidents == STEPS
    assert guarded.incidents >= 1
    assert abs(guarded.held_out_loss - clean.held_out_loss) < 0.05  # of about 0.42


@pytest.mark.parametrize(
    "name",
    [fault.name for fault in SYSTEM.faults if fault.cause is not None],
)
def test_the_guard_names_place_and_cause_and_proves_it(name: str) -> None:
    assert shown(name).named, shown(name).incident
    assert shown(name).proven


@pytest.mark.parametrize("name", NAN_FAULTS)
def test_the_guard_points_at_the_line_that_is_wrong(name: str) -> None:
    lines = {
        "short_text": "return scores.softmax(dim=-1)",
        "half_epsilon": "return (error.sum((1, 2, 3)) / (kept.sum((1, 2, 3)) + eps)).mean()",
        "rmsnorm_zero_rows": "normed: Tensor = x / (norm + self.epsilon)",
        "rmsnorm_large_values": "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)",
    }
    incident = shown(name).incident
    assert incident is not None
    if name in lines:
        assert incident.source is not None
        assert incident.source.text.strip() == lines[name]
    else:
        assert [finding.name for finding in incident.findings if finding.kind == "batch"] == ["image"]


# ---- short_text


def test_32_characters_have_no_patch_and_33_have_one() -> None:
    run = SYSTEM.run(fault=SYSTEM.fault("short_text"))
    for length, patches in ((32, 0), (33, 1), (256, 16)):
        pixels = torch.zeros(1, 256, dtype=torch.bool)
        pixels[:, :length] = True
        assert majority(cast(Any, run.model)._to_patches(pixels.reshape(1, 16, 16, 1))).sum() == patches


def test_a_test_of_the_whole_batch_sees_nothing() -> None:
    tested, plain = shown("short_text").result("if all(-inf)"), shown("short_text").result("plain")
    assert not tested.state_finite
    assert tested.first_bad == plain.first_bad


def test_nan_to_num_repairs_the_value_and_not_the_gradient_where_the_mask_is_added() -> None:
    run = SYSTEM.run(fault=SYSTEM.fault("short_text"), remedy=ADDED_MASK, changes=SHORT)
    plain = shown("short_text").result("plain")
    assert plain.first_bad is not None
    added, _ = measure("added", run, plain.first_bad + 2)
    assert added.first_bad == plain.first_bad + 1, "the loss of the fatal step looks fine"
    assert not added.state_finite


@pytest.mark.parametrize("name", ["nan_to_num", "skip bad output"])
def test_two_remedies_hold_where_the_mask_is_filled_in(name: str) -> None:
    held = shown("short_text").result(name)
    assert held.state_finite
    assert held.first_bad is None
    assert abs(held.held_out_loss - shown("short_text").result("clean").held_out_loss) < 0.05


def test_zeroed_gradients_still_move_the_weights() -> None:
    remedy = next(each for each in SYSTEM.fault("short_text").remedies if each.name == "zero bad gradients")
    run = SYSTEM.run(fault=SYSTEM.fault("short_text"), remedy=remedy, changes=SHORT)
    before = torch.cat([p.detach().reshape(-1).clone() for p in run.model.parameters()])
    for step in train(run, steps=STEPS):
        after = torch.cat([p.detach().reshape(-1).clone() for p in run.model.parameters()])
        if math.isnan(step.loss):
            break
        before = after
    assert math.isnan(step.loss)
    assert after.isfinite().all()
    assert (after != before).float().mean() > 0.5, "nothing was learned, and most weights moved"


# ---- the others


def test_nan_to_num_of_the_loss_reads_zero_while_the_weights_are_nan() -> None:
    filled = shown("mask_product").result("nan_to_num(loss)")
    assert not filled.state_finite
    assert filled.first_bad is None
    assert filled.final_loss == 0.0


def test_an_epsilon_that_float16_holds_has_an_inverse_that_it_does_not() -> None:
    predicted = torch.randn(16, 4, 4, 3, dtype=torch.float16, requires_grad=True)
    mask = torch.ones(16, 4, 4, 1, dtype=torch.bool)
    mask[3] = False
    assert half_loss(predicted, predicted.detach() * 0, mask).isnan()
    larger = shown("half_epsilon").result("eps 1e-6")
    plain = shown("half_epsilon").result("plain")
    assert plain.first_bad is not None
    assert larger.first_bad == plain.first_bad + 1, "the loss of the fatal step looks fine"
    assert not larger.state_finite


def test_nan_to_num_behind_the_norm_is_a_step_late() -> None:
    filled, plain = shown("rmsnorm_zero_rows").result("nan_to_num"), shown("rmsnorm_zero_rows").result("plain")
    assert plain.first_bad is not None
    assert filled.first_bad == plain.first_bad + 1
    assert not filled.state_finite


def test_the_epsilon_of_the_project_was_not_the_cause() -> None:
    zeros = torch.zeros(1, 8, dtype=torch.float16, requires_grad=True)
    assert HalfAdaLN(8, condition_dim=8).normalise(zeros).isnan().all()
    normed = ProjectAdaLN(8, condition_dim=8).normalise(zeros)
    assert normed.abs().max() == 0
    held = shown("rmsnorm_zero_rows").result("eps 1e-6")
    assert held.state_finite
    assert held.first_bad is None


def test_a_norm_of_large_values_is_zero() -> None:
    norm = LargeAdaLN(8, condition_dim=8)
    assert norm.normalise(torch.full((1, 8), 3.0).half()).abs().max() == 0


def test_a_grown_scale_is_a_dead_run_that_looks_alive() -> None:
    plain, careful = shown("adaln_scale").result("plain"), shown("adaln_scale").result("lower lr and clip")
    for dead in (plain, careful):
        assert dead.state_finite
        assert dead.applied == 0
    guarded = shown("adaln_scale").result("nantrap")
    assert guarded.stopped
    assert guarded.state_finite
    assert guarded.steps < STEPS


def test_the_soft_limit_holds_a_grown_scale() -> None:
    grown, limited = GrownAdaLN(8, condition_dim=8), AdaLNZero(8, condition_dim=8)
    limited.load_state_dict(grown.state_dict())
    x, condition = 3 * torch.randn(1, 4, 8), torch.randn(1, 8)
    with torch.autocast("cpu", torch.float16):
        assert grown(x, condition)[0].isinf().any()
        assert limited(x, condition)[0].abs().max() < 100


def test_a_new_scaler_each_epoch_loses_most_steps_and_the_summary_asks_about_it() -> None:
    clean, plain = shown("new_scaler").result("clean"), shown("new_scaler").result("plain")
    guarded = shown("new_scaler").result("nantrap")
    assert plain.applied < MORE_STEPS / 2
    assert plain.held_out_loss > clean.held_out_loss + 0.02
    assert guarded.applied < clean.applied, "the loop under `nantrap run` is the faulty one"
    assert shown("new_scaler").named
    assert any("made anew again and again" in note for note in shown("new_scaler").notes)
    assert shown("new_scaler").rows()[-1][-2:] == ("NT407", "yes")


@pytest.mark.parametrize("name", ["new_scaler", "clip_before_unscale"])
def test_a_guard_makes_the_step_itself_and_has_no_such_loop(name: str) -> None:
    fault = SYSTEM.fault(name)
    clean = shown(name).result("clean")
    guarded, incident = measure(
        "attempt", SYSTEM.run(fault=fault, changes=SMALLER), clean.steps, guarded=True, quiet=True
    )
    assert incident is None, "a scaler that searches its scale is no incident"
    assert guarded.applied == clean.applied
    assert guarded.held_out_loss == pytest.approx(clean.held_out_loss, abs=0.05)


def test_clipping_before_unscaling_does_not_move() -> None:
    clean, plain = shown("clip_before_unscale").result("clean"), shown("clip_before_unscale").result("plain")
    careful = shown("clip_before_unscale").result("lower lr and clip")
    guarded = shown("clip_before_unscale").result("nantrap")
    for still in (plain, careful, guarded):
        assert still.state_finite
        assert still.held_out_loss > 0.51, "as at the start"
    assert clean.held_out_loss < 0.49
    assert guarded.held_out_loss == plain.held_out_loss, "the same loop, bit for bit"
    assert guarded.incidents == 0
    assert shown("clip_before_unscale").rows()[-1][-2] == "no incident"
