"""Loops that know nothing of the guard: unchanged while healthy, contained when they go bad."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from journals import steps_in
from launch.loops import LOOPS, Batches, Net, Result, batches, state
from nantrap import NonFiniteError
from nantrap.launch.attach import Attachment, attached
from nantrap.launch.settings import RunSettings


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(run_dir=str(tmp_path / "run"), quiet=True)


def run(name: str, data: Batches) -> Result:
    torch.manual_seed(7)
    return LOOPS[name](data)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def finite(tensors: list[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


@pytest.mark.parametrize("name", LOOPS)
def test_a_healthy_loop_is_bit_identical(name: str, settings: RunSettings) -> None:
    losses, end = run(name, batches())
    with attached(settings) as attachment:
        guarded_losses, guarded_end = run(name, batches())
        (first, *_) = attachment.registry
    assert guarded_losses == losses
    assert same(end, guarded_end)
    assert first.tally.applied == first.tally.attempted > 0
    assert first.tally.incidents == 0


@pytest.mark.parametrize("name", LOOPS)
def test_a_bad_batch_is_contained(name: str, settings: RunSettings) -> None:
    data = batches(bad=5)
    if name == "clipped_and_scheduled":
        with pytest.raises(RuntimeError, match="non-finite"):  # error_if_nonfinite of clip_grad_norm_
            run(name, data)
    else:
        assert not finite(run(name, data)[1]), "without the guard the run is lost"
    with attached(settings) as attachment:
        losses, end = run(name, data)
        loops = list(attachment.registry)
    assert finite(end)
    assert math.isfinite(losses[-1])
    incidents = [loop.last_incident for loop in loops if loop.last_incident is not None]
    assert incidents
    assert all(loop.stopped is None for loop in loops)


@pytest.mark.parametrize("name", ["plain", "closure_of_adam", "third_party_optimizer", "averaged"])
def test_after_a_refused_step_all_is_as_if_the_batch_had_not_been(name: str, settings: RunSettings) -> None:
    """Everything but the random stream, which continues: so the loops are run without dropout."""
    data = batches(bad=5)
    without = [batch for number, batch in enumerate(data) if number != 5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Dropout, "forward", lambda self, x: x)
        _, clean = run(name, without)
        with attached(settings):
            _, guarded = run(name, data)
    assert same(clean, guarded)


def test_the_incident_names_data_sample_and_step(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        run("plain", batches(bad=5))
        (loop,) = attachment.registry
    incident = loop.last_incident
    assert incident is not None
    assert (incident.step, incident.phase, incident.module) == (5, "data", "data")
    assert incident.causes[0].slug == "bad_input_data"
    assert incident.samples == (2,)
    assert (Path(settings.run_dir) / "incidents" / "000005-r0" / "incident.json").exists()
    assert [line["step"] for line in steps_in(settings.run_dir)] == list(range(12))


def test_a_bad_micro_batch_is_left_out_and_the_others_stay(settings: RunSettings) -> None:
    data = batches(bad=5)
    with attached(settings) as attachment:
        _, end = run("accumulated", data)
        (loop,) = attachment.registry
    assert finite(end)
    assert loop.tally.dropped_micro_batches == 1
    assert loop.tally.applied == loop.tally.attempted == 4


def test_only_the_optimizer_that_is_hit_is_held(settings: RunSettings) -> None:
    """The judge saw a bad batch; the generator's own loss was fine and its step is taken."""
    with attached(settings) as attachment:
        run("two_optimizers", batches(bad=5))
        counts = sorted((loop.tally.attempted, loop.tally.applied) for loop in attachment.registry)
    assert counts == [(12, 11), (12, 12)]


def test_a_loss_that_two_optimizers_share_is_diagnosed_once(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        run("two_optimizers_one_loss", batches(bad=5))
        first, second = (loop.last_incident for loop in attachment.registry)
    assert first is not None
    assert second is not None
    assert first.causes[0].slug == second.causes[0].slug == "bad_input_data"
    assert first.trials or first.causes[0].proven
    assert second.same_as == first.step


# ---- what the script does around a bad step


def training(net: nn.Module, data: Batches) -> Iterator[tuple[Tensor, torch.optim.Optimizer]]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for x, y in data:
        optimizer.zero_grad()
        yield F.mse_loss(net(x), y), optimizer


def test_a_script_that_skips_on_its_own_gets_its_buffers_back(
    settings: RunSettings, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    net = Net()
    with attached(RunSettings(run_dir=str(tmp_path))) as attachment:
        for loss, optimizer in training(net, batches(bad=5)):
            if not torch.isfinite(loss):
                continue
            loss.backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert finite(state(net))
    assert (loop.tally.applied, loop.tally.attempted, loop.tally.given_up) == (11, 12, 1)
    said = capsys.readouterr().err
    assert "the script skipped this batch itself" in said
    assert re.search(r"= did: +the script skipped the step", said)
    assert "nantrap skipped" not in said


def test_a_script_that_gives_up_after_backward_loses_no_good_step(settings: RunSettings) -> None:
    net = Net()
    with attached(settings) as attachment:
        for loss, optimizer in training(net, batches(bad=5)):
            loss.backward()
            if not torch.isfinite(loss):
                optimizer.zero_grad()
                continue
            optimizer.step()
        (loop,) = attachment.registry
    assert finite(state(net))
    assert (loop.tally.applied, loop.tally.attempted, loop.tally.given_up) == (11, 12, 1)


def test_gradients_can_be_looked_at_after_a_refused_step(settings: RunSettings) -> None:
    net = Net()
    norms = []
    with attached(settings):
        for loss, optimizer in training(net, batches(bad=5)):
            loss.backward()
            optimizer.step()
            norms.append(sum(p.grad.norm().item() for p in net.parameters() if p.grad is not None))
    assert len(norms) == 12
    assert all(map(math.isfinite, norms))


def test_a_schedule_of_steps_is_held_and_one_of_epochs_is_not(settings: RunSettings) -> None:
    net = Net()
    data = batches(bad=11)
    with attached(settings):
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
        by_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for x, y in data:
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
            by_step.step()
        by_epoch.step()
    assert by_step.last_epoch == 11, "12 steps, the last of which was refused"
    assert by_epoch.last_epoch == 1


def test_the_scaler_keeps_its_scale_in_an_incident_and_searches_it_in_a_probe(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        _, end = run("scaled", batches(bad=5))
        (loop,) = attachment.registry
    assert end[-1] == 256.0
    assert loop.tally.scaler_probes == 0
    assert loop.last_incident is not None

    def large(data: Batches) -> tuple[list[float], float]:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
        losses = []
        for x, y in data:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, scaler.get_scale()

    plain = large(batches())
    with attached(settings) as attachment:
        guarded = large(batches())
        (loop,) = attachment.registry
    assert guarded == plain
    assert loop.tally.scaler_probes > 0
    assert loop.tally.incidents == 0


class BadSlope(torch.autograd.Function):
    """A function whose slope is NaN where that is wanted, without any Inf."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, bad: bool) -> Tensor:
        ctx.bad = bad
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * math.nan if ctx.bad else gradient, None


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_lowers_its_scale_at_nan_as_it_would_alone(fused: bool, unscales: bool, settings: RunSettings) -> None:
    def train() -> tuple[list[float], Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        scales = []
        for step in range(6):
            optimizer.zero_grad()
            loss = BadSlope.apply(model(torch.randn(8, 4)), step == 3).square().mean()
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, model.weight.detach().clone()

    scales, weight = train()
    with attached(settings) as attachment:
        guarded_scales, guarded = train()
        (incident,) = [loop.last_incident for loop in attachment.registry]
    assert guarded_scales == scales
    assert torch.equal(guarded, weight)
    assert incident is not None
    assert (incident.step, incident.phase) == (3, "backward")


def test_the_budget_ends_the_run_even_if_the_script_swallows_the_error(tmp_path: Path) -> None:
    net = Net()
    bad = [(torch.full((8, 6), math.nan), torch.zeros(8, 1))] * 6
    errors = 0
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True, max_skips=2)) as attachment:
        for loss, optimizer in training(net, bad):
            loss.backward()
            try:
                optimizer.step()
            except NonFiniteError:
                errors += 1
        (loop,) = attachment.registry
    assert loop.stopped is not None
    assert errors == 4
    assert finite(state(net))


def test_strict_raises_at_the_first_incident(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True, policy_name="strict")), pytest.raises(NonFiniteError):
        run("plain", batches(bad=5))


def test_observe_changes_nothing(tmp_path: Path) -> None:
    data = batches(bad=5)
    _, plain = run("plain", data)
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True, policy_name="observe")) as attachment:
        _, observed = run("plain", data)
        (loop,) = attachment.registry
        assert attachment.bad_state()
    assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(plain, observed, strict=True))
    assert loop.tally.incidents > 0


def test_observe_blames_nothing_on_the_steps_after_the_poison(tmp_path: Path) -> None:
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True, policy_name="observe")) as attachment:
        run("plain", batches(bad=5))
        (loop,) = attachment.registry
    assert dict(loop.tally.causes) == {"bad_input_data": 1, "after step 5": 6}
    assert loop.last_incident is not None
    assert loop.last_incident.notes == ("the weights have been non-finite since step 5, which was applied unchanged",)


def test_a_bare_layer_is_placed_at_the_line_that_called_it(settings: RunSettings) -> None:
    layer = nn.Linear(6, 1)
    with attached(settings) as attachment:
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        for x, y in batches(3, bad=1):
            optimizer.zero_grad()
            out = layer(x)
            F.mse_loss(out, y).backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert loop.last_incident is not None
    assert loop.last_incident.source is not None
    assert loop.last_incident.source.text.strip() == "out = layer(x)"


def test_a_scaler_that_searches_holds_no_schedule(settings: RunSettings) -> None:
    def searched() -> int:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for x, y in batches(6):
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(net(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of a schedule before the first step
                scheduler.step()
        return scheduler.last_epoch

    plain = searched()
    with attached(settings):
        assert searched() == plain


def test_rollback_restores_from_memory(tmp_path: Path) -> None:
    net = Net()
    good = batches(40)
    bad = [(torch.full((8, 6), math.nan), torch.zeros(8, 1))] * 3
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True, max_skips=2, rollback=True)) as attachment:
        for loss, optimizer in training(net, [*good, *bad, *good]):
            loss.backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert loop.tally.rollbacks == 1
    assert finite(state(net))


# ---- attaching and detaching


def test_everything_is_put_back() -> None:
    import safetensors.torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    places = [
        (torch.optim.Optimizer, "__init__"), (torch.optim.Adam, "step"), (torch.optim.Optimizer, "zero_grad"),
        (torch.autograd, "backward"), (torch.nn.utils, "clip_grad_norm_"), (torch.amp.GradScaler, "step"),
        (torch.optim.lr_scheduler.LRScheduler, "step"), (torch, "save"), (safetensors.torch, "save_file"),
        (_BaseDataLoaderIter, "__next__"), (nn.Module, "__call__"), (nn.Module, "zero_grad"),
        (torch.optim.swa_utils.AveragedModel, "update_parameters"), (torch.multiprocessing, "start_processes"),
    ]  # fmt: skip
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch wraps `step` when the first one is made
    before = [vars(owner)[name] for owner, name in places]
    with attached(RunSettings()):
        torch.optim.Adam([nn.Parameter(torch.zeros(1))])
        assert all(vars(owner)[name] is not kept for (owner, name), kept in zip(places, before, strict=True))
    assert all(vars(owner)[name] is kept for (owner, name), kept in zip(places, before, strict=True))


def test_modules_are_watched_only_until_the_model_is_known(settings: RunSettings) -> None:
    plain_call = nn.Module.__call__
    with attached(settings):
        net = Net()
        assert nn.Module.__call__ is plain_call
        torch.optim.AdamW(net.parameters())
        assert nn.Module.__call__ is not plain_call
        net(torch.zeros(4, 6))
        assert nn.Module.__call__ is plain_call


@pytest.mark.parametrize("before", [torch.optim.AdamW, torch.optim.NAdam])
def test_attaching_again_guards_again(before: type[torch.optim.Optimizer], settings: RunSettings) -> None:
    for _ in range(2):
        with attached(settings) as attachment:
            net = Net()
            optimizer = before(net.parameters(), lr=1e-3)  # type: ignore[call-arg]
            net(torch.zeros(4, 6)).sum().backward()
            optimizer.step()
            assert [loop.tally.applied for loop in attachment.registry] == [1]


def test_a_copy_of_the_model_is_free_and_a_pickle_needs_no_nantrap(settings: RunSettings, tmp_path: Path) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters())
        F.mse_loss(net(torch.zeros(4, 6)), torch.zeros(4, 1)).backward()
        best = copy.deepcopy(net)
        torch.save(net, tmp_path / "net.pt")
        optimizer.step()
        best(torch.full((4, 6), math.nan))
        F.mse_loss(net(torch.zeros(4, 6)), torch.zeros(4, 1)).backward()
        optimizer.step()
        (loop,) = attachment.registry
    assert loop.tally.applied == 2
    assert b"nantrap" not in (tmp_path / "net.pt").read_bytes()


def test_an_optimizer_with_its_own_guard_is_left_alone(settings: RunSettings, tmp_path: Path) -> None:
    import nantrap

    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters())
        with nantrap.Guard(net, optimizer, quiet=True) as guard:
            for x, y in batches(4, bad=2):
                guard.backward(F.mse_loss(net(x), y))
                guard.step()
        assert list(attachment.registry) == []
        assert guard.tally.incidents == 1
    assert isinstance(attachment, Attachment)


class Half(nn.Linear):
    """A model that is named like a method of every module."""


def test_a_model_named_like_a_method_of_modules_is_guarded(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        body, head = Half(6, 4), nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        for x, y in batches(3, bad=1):
            optimizer.zero_grad()
            F.mse_loss(head(body(x)), y).backward()
            optimizer.step()
        (loop,) = attachment.registry
    assert (loop.tally.applied, loop.tally.incidents) == (2, 1)
