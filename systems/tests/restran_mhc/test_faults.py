"""Every fault: the damage is as described, the remedies fail as described, the guard names it and the run continues.

The models are smaller than in the demo and make fewer steps.
"""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nantrap.checkpoints import check_resume
from nantrap.ops import RMSNorm, sinkhorn
from nantrap_systems import load_system
from nantrap_systems.restran_mhc.faults import (
    BypassedConnection,
    ExpSinkhorn,
    FilledSinkhorn,
    ShiftedSinkhorn,
    TinyEpsilonNorm,
    load_everything,
    load_schedule,
    save_always,
    torch_ctc,
    zeroed_ctc,
)
from nantrap_systems.showcase import Showcase, show
from nantrap_systems.training import guard_of, train

SYSTEM = load_system("restran_mhc")
SMALL = {"channels": 16, "batch_size": 8}
CASES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "sinkhorn_overflow": (20, {**SMALL, "steps_per_epoch": 5}),
    "poisoned_checkpoint": (6, {**SMALL, "earlier_steps": 3}),
    "stale_rate": (8, {**SMALL, "earlier_steps": 3}),
    "black_frames": (10, {**SMALL, "black_frames": 0.006}),
    "rmsnorm_epsilon": (8, {"batch_size": 8, "missing_frames": 0.015}),
    "ctc_short_input": (8, {"channels": 16}),
    "stream_gain": (13, {"mhc_n": 8, "mhc_blocks": 8}),
    "scaler_alarm": (24, {"mhc_blocks": 1, "loss_scale": 2.0**20}),
    "no_mixing": (30, {"batch_size": 8}),
}
"""Steps and settings."""
NAN_FAULTS = ("sinkhorn_overflow", "black_frames", "rmsnorm_epsilon", "ctc_short_input")


@functools.cache
def shown(name: str) -> Showcase:
    steps, changes = CASES[name]
    return show(SYSTEM, SYSTEM.fault(name), steps=steps, changes=changes, quiet=True)


def test_all_faults_are_here() -> None:
    assert [fault.name for fault in SYSTEM.faults] == list(CASES)


@pytest.mark.parametrize("name", NAN_FAULTS)
def test_clean_is_healthy_and_plain_ends_in_nan(name: str) -> None:
    clean, plain = shown(name).result("clean"), shown(name).result("plain")
    assert clean.state_finite
    assert clean.applied == CASES[name][0]
    assert clean.first_bad is None
    assert not plain.state_finite
    assert plain.applied == CASES[name][0], "every step was taken, the fatal one and all after it"
    assert not math.isfinite(plain.final_loss)
    assert plain.quality == 0


@pytest.mark.parametrize("name", [*NAN_FAULTS, "poisoned_checkpoint"])
def test_lowering_the_learning_rate_and_clipping_harder_does_not_help(name: str) -> None:
    assert not shown(name).result("lower lr and clip").state_finite


@pytest.mark.parametrize("name", ["stale_rate", "black_frames", "ctc_short_input"])
def test_remedies_that_hold_are_finite_and_close_to_clean(name: str) -> None:
    clean = shown(name).result("clean")
    for remedy in SYSTEM.fault(name).remedies:
        if remedy.holds:
            result = shown(name).result(remedy.name)
            assert result.state_finite
            assert result.final_loss == pytest.approx(clean.final_loss, abs=0.5)  # from 7 to about 5.5 by then


@pytest.mark.parametrize("name", NAN_FAULTS)
def test_the_guard_keeps_the_run_alive_and_close_to_clean(name: str) -> None:
    clean, guarded = shown(name).result("clean"), shown(name).result("nantrap")
    assert guarded.state_finite
    assert not guarded.stopped
    assert guarded.incidents >= 1
    assert guarded.applied + guarded.incidents == CASES[name][0]
    if name == "sinkhorn_overflow":  # half of its steps are lost, and some are taken twice
        assert guarded.losses[-1] < 5.9
    else:
        assert abs(guarded.final_loss - clean.final_loss) < 1.3  # from 7 to about 5 by then


_SLOW = ("stream_gain", "scaler_alarm", "no_mixing")


def _marked(name: str) -> Any:
    return pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else [])


@pytest.mark.parametrize("name", [_marked(fault.name) for fault in SYSTEM.faults])
def test_the_guard_names_place_and_cause_and_proves_it(name: str) -> None:
    assert shown(name).named, shown(name).incident
    if SYSTEM.fault(name).cause is None:
        assert shown(name).result("nantrap").incidents == 0
    else:  # a checkpoint is loaded before the guard is made: that it was bad on disk was not seen
        assert shown(name).proven is (name != "poisoned_checkpoint")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("sinkhorn_overflow", "matrix = logits_BNN.exp()"),
        ("black_frames", "return (frames_BHW - mean) / self.spread(frames_BHW)"),
        ("rmsnorm_epsilon", "wide = x_BD.float()"),
        ("ctc_short_input", "return F.ctc_loss(log_probs_TBK, labels, columns, lengths)"),
    ],
)
def test_the_guard_points_at_the_line(name: str, line: str) -> None:
    incident = shown(name).incident
    assert incident is not None
    assert incident.source is not None
    assert incident.source.text.strip() == line


# ---- Sinkhorn


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 88.7), (torch.float16, 11.08)])
def test_exp_overflows_above_its_limit(dtype: torch.dtype, limit: float) -> None:
    logits = torch.tensor([[[limit, 0.0], [0.0, limit]]], dtype=dtype)
    assert logits.exp().isfinite().all()
    larger = torch.tensor([[[limit + 0.1, 0.0], [0.0, limit + 0.1]]], dtype=dtype)
    assert larger.exp().isinf().any()
    assert ExpSinkhorn()(larger).isnan().any()
    assert sinkhorn(larger).isfinite().all()


def test_a_row_far_below_is_0_over_0_and_a_fill_leaves_the_gradient_nan() -> None:
    far = torch.tensor([[[0.0, 0.0], [-200.0, -200.0]]], requires_grad=True)
    assert ExpSinkhorn()(far).isnan().any()
    assert ShiftedSinkhorn()(far).isnan().any(), "subtracting the maximum does not help a row below it"
    assert torch.equal(FilledSinkhorn()(far).detach(), torch.full((1, 2, 2), 0.5))
    (gradient,) = torch.autograd.grad(FilledSinkhorn()(far).square().sum(), far)
    assert gradient.isnan().any()
    (gradient,) = torch.autograd.grad(sinkhorn(far).square().sum(), far)
    assert gradient.isfinite().all()


def test_a_fill_is_a_step_late() -> None:
    filled = shown("sinkhorn_overflow").result("where(isnan, 1/n)")
    plain = shown("sinkhorn_overflow").result("plain")
    assert plain.first_bad is not None
    assert filled.first_bad == plain.first_bad + 1, "the loss of the fatal step looks fine"
    assert not filled.state_finite


def test_a_block_that_returns_its_input_is_finite_and_dead() -> None:
    assert shown("sinkhorn_overflow").result("return the input").state_finite
    remedy = next(r for r in SYSTEM.fault("sinkhorn_overflow").remedies if r.name == "return the input")
    changes = {**SMALL, "mhc_alpha_res": 1000.0}
    run = SYSTEM.run(fault=SYSTEM.fault("sinkhorn_overflow"), remedy=remedy, changes=changes)
    block = run.model.get_submodule("mhc.0")
    assert isinstance(block, BypassedConnection)
    before = {name: value.clone() for name, value in block.named_parameters()}
    losses = [step.loss for step in train(run, steps=3)]
    assert all(map(math.isfinite, losses))
    assert all(torch.equal(value, before[name]) for name, value in block.named_parameters()), "nothing in it moved"


def test_the_watch_warns_an_epoch_before_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    run = SYSTEM.run(fault=SYSTEM.fault("sinkhorn_overflow"), changes={**SMALL, "steps_per_epoch": 3})
    with guard_of(run) as guard:
        steps = list(train(run, steps=6, guard=guard))
    assert all(step.applied for step in steps)
    assert "watched value mhc.0.alpha_res: 2 is above 1" in capsys.readouterr().err


def test_the_guard_rolls_back_to_the_state_before_alpha_res_had_grown() -> None:
    guarded = shown("sinkhorn_overflow").result("nantrap")
    assert guarded.skipped == [10, 11, 12, 13, 14, 15]
    assert guarded.applied == 14, "and the last steps are good ones"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_logits_overflow_by_a_wide_margin_and_ordinary_ones_do_not(seed: int) -> None:
    fault = SYSTEM.fault("sinkhorn_overflow")
    for alpha, limits in ((1000.0, (200.0, math.inf)), (2.0, (0.0, 20.0))):
        run = SYSTEM.run(fault=fault, repaired=True, changes={**SMALL, "mhc_alpha_res": alpha}, seed=seed)
        seen: list[float] = []
        sinkhorn_module = run.model.get_submodule("mhc.0.sinkhorn")
        sinkhorn_module.register_forward_pre_hook(lambda module, args: seen.append(args[0].abs().max().item()))
        run.loss(run.window(0)[0])
        assert limits[0] < seen[0] < limits[1]


# ---- frames, norm, CTC


def test_skipping_leaves_nan_in_the_running_statistics() -> None:
    skipped, guarded = (shown("black_frames").result(name) for name in ("skip a NaN norm", "nantrap"))
    assert skipped.applied == guarded.applied
    assert not skipped.state_finite
    assert math.isnan(skipped.held_out_loss)
    assert math.isfinite(guarded.held_out_loss), "the guard puts buffers back as well"


def test_the_slope_at_a_row_of_zeros_is_1e10() -> None:
    x = torch.zeros(1, 8, requires_grad=True)
    assert TinyEpsilonNorm(8)(x).abs().max() == 0
    (slope,) = torch.autograd.grad(TinyEpsilonNorm(8)(x)[0, 0], x)
    assert slope[0, 0].item() == pytest.approx(1e10, rel=1e-3)
    assert slope.half().isinf().any()
    (slope,) = torch.autograd.grad(RMSNorm(8)(x)[0, 0], x)
    assert slope[0, 0].item() == pytest.approx(1e3, rel=1e-3)


def test_the_loss_of_the_fatal_step_is_finite() -> None:
    incident = shown("rmsnorm_epsilon").incident
    assert incident is not None
    assert incident.phase == "backward"
    assert incident.module == "mhc.0.norm"
    assert incident.loss is not None
    assert math.isfinite(incident.loss)
    assert not shown("rmsnorm_epsilon").result("clamp(-10, 10)").state_finite


def test_ctc_of_a_plate_that_does_not_fit() -> None:
    labels, lengths = torch.tensor([[1, 1, 1, 2, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]), torch.tensor([7, 7])
    logits = torch.randn(9, 2, 37, requires_grad=True)
    columns = torch.tensor([9, 9])
    loss = torch_ctc(logits.log_softmax(-1), labels, columns, lengths)
    assert loss.isinf()
    assert torch.autograd.grad(loss, logits)[0].isnan().any()
    zeroed = zeroed_ctc(logits.log_softmax(-1), labels, columns, lengths)
    assert torch.autograd.grad(zeroed, logits)[0].isfinite().all()
    alone = F.ctc_loss(logits[:, 1:].log_softmax(-1), labels[1:], columns[1:], lengths[1:])
    assert zeroed.item() == pytest.approx(alone.item() / 2), "the plate that does not fit is counted as read right"


def test_a_clamped_loss_is_a_step_late() -> None:
    clamped, plain = (shown("ctc_short_input").result(name) for name in ("clamp(loss, 100)", "plain"))
    assert plain.first_bad is not None
    assert clamped.first_bad == plain.first_bad + 1
    assert not clamped.state_finite


# ---- states


def test_a_poisoned_checkpoint_is_nan_from_the_first_step() -> None:
    showcase = shown("poisoned_checkpoint")
    assert showcase.result("plain").first_bad == 0
    assert showcase.result("clean").first_bad is None
    guarded = showcase.result("nantrap")
    assert guarded.stopped
    assert guarded.applied == 0
    assert any("NaN, Inf or numbers no training makes" in note for note in showcase.notes)


def test_the_store_refuses_what_the_plain_run_saves() -> None:
    run = SYSTEM.run(fault=SYSTEM.fault("poisoned_checkpoint"), repaired=True, changes={**SMALL, "earlier_steps": 2})
    assert any("was not saved" in note for note in run.notes)
    assert all(bool(parameter.isfinite().all()) for parameter in run.model.parameters())


def test_weights_filled_with_zeros_are_spoilt_again_by_the_moments() -> None:
    filled = shown("poisoned_checkpoint").result("nan_to_num(weights)")
    assert filled.first_bad == 1
    assert not filled.state_finite


def test_a_check_of_parameters_does_not_see_buffers() -> None:
    checked = shown("poisoned_checkpoint").result("check parameters")
    assert checked.first_bad is None
    assert math.isfinite(checked.final_loss), "training looks healthy"
    assert not checked.state_finite
    assert math.isnan(checked.held_out_loss)
    assert checked.quality == 0


def resumed(load: Any) -> float:
    """The rate in force at step 3 after a resume with a config of 1e-4, from a run at 4.92e-4."""
    rates = {"total_steps": 9, "warmup": 0.2}
    before = SYSTEM.run(changes={**SMALL, **rates, "learning_rate": 4.92e-4})
    for _ in train(before, steps=1):
        pass
    with tempfile.TemporaryDirectory() as folder:
        save_always(before, Path(folder), 1)
        after = SYSTEM.run(changes={**SMALL, **rates, "learning_rate": 1e-4})
        load(after, Path(folder), 1e-4)
    assert after.scheduler is not None
    assert before.optimizer.param_groups[0]["lr"] == pytest.approx(4.92e-4), "the top of the cycle"
    found = check_resume(optimizer=after.optimizer, scheduler=after.scheduler, lr=1e-4)
    stale = any(finding.kind == "rate" for finding in found)
    for _ in train(after, steps=1, start=1):
        pass
    rate = float(after.optimizer.param_groups[0]["lr"])
    assert stale == (rate > 1e-4)
    return rate / (float(before.scheduler.get_last_lr()[0]) if before.scheduler else 1.0)


def load_optimizer(run: Any, folder: Path, rate: float) -> None:
    state = torch.load(folder / "last.pt", weights_only=True)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])


def test_the_optimizer_state_restores_the_learning_rate_and_the_scheduler_state_does_not() -> None:
    """The optimizer's state alone is enough: OneCycleLR keeps its learning rates in the parameter groups."""
    assert resumed(load_everything) > 0.9
    assert resumed(load_optimizer) > 0.9
    assert resumed(load_schedule) < 0.21
    alone = SYSTEM.fault("stale_rate").remedies[0]
    run = SYSTEM.run(fault=SYSTEM.fault("stale_rate"), remedy=alone, changes=CASES["stale_rate"][1])
    assert not run.optimizer.state, "but Adam knows nothing of the steps before"


def test_a_stale_learning_rate_cannot_be_lowered_in_the_config() -> None:
    fault = SYSTEM.fault("stale_rate")
    _, changes = CASES["stale_rate"]
    caution = next(remedy for remedy in fault.remedies if remedy.name == "lower lr and clip")
    rates = [
        SYSTEM.run(fault=fault, remedy=remedy, changes=changes).optimizer.param_groups[0]["lr"]
        for remedy in (None, caution)
    ]
    assert rates[0] == rates[1]
    repaired = SYSTEM.run(fault=fault, repaired=True, changes=changes).optimizer.param_groups[0]["lr"]
    assert rates[0] == pytest.approx(4.92 * repaired)
    assert shown("stale_rate").result("nantrap").held_out_loss == shown("stale_rate").result("plain").held_out_loss


@pytest.mark.slow
def test_probing_is_no_alarm() -> None:
    clean, plain, guarded = (shown("scaler_alarm").result(name) for name in ("clean", "plain", "nantrap"))
    assert clean.applied < CASES["scaler_alarm"][0], "the scaler searches"
    assert guarded.incidents == 0
    assert any("searched its scale (normal)" in note for note in shown("scaler_alarm").notes)
    assert guarded.held_out_loss == pytest.approx(plain.held_out_loss), "the same loop, which halves its learning rate"
    assert clean.held_out_loss < plain.held_out_loss - 0.3


# ---- streams


@pytest.mark.slow
def test_a_gain_that_leaves_float16_is_a_dead_run() -> None:
    for name in ("plain", "lower lr and clip"):
        assert shown("stream_gain").result(name).applied == 0
    guarded = shown("stream_gain").result("nantrap")
    assert guarded.stopped
    assert guarded.state_finite, "the guard puts the running statistics back"
    assert not shown("stream_gain").result("plain").state_finite
    incident = shown("stream_gain").incident
    assert incident is not None
    outputs = [probe.stats.absmax for probe in incident.probes if probe.name.endswith(".output")]
    gains = [after / before for before, after in itertools.pairwise(outputs[:4]) if before and after]
    assert all(gain == pytest.approx(5, rel=0.2) for gain in gains), "1 + n/2 for n = 8"


@pytest.mark.slow
def test_without_mixing_it_learns_more_slowly_and_nothing_shows_it() -> None:
    clean, plain, guarded = (shown("no_mixing").result(name) for name in ("clean", "plain", "nantrap"))
    assert plain.state_finite
    assert plain.first_bad is None
    assert plain.held_out_loss == guarded.held_out_loss
    assert abs(plain.held_out_loss - clean.held_out_loss) > 0.01
