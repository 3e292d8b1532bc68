"""Loops that handle NaN themselves, train nothing, or train wrongly: seen, counted, diagnosed, restored."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from launch.loops import Batches, Net, batches
from nantrap import NonFiniteError, Policy
from nantrap.launch.attach import Attachment, attached
from nantrap.launch.script_loop import ScriptLoop
from nantrap.launch.settings import RunSettings
from nantrap.launch.summary import RunSummary

BAD = 5
Loop = Callable[[Batches], nn.Module]


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(run_dir=str(tmp_path / "run"))


def isnan_then_continue(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in data:
        loss = F.mse_loss(net(x), y)
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def method_then_continue(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in data:
        loss = F.mse_loss(net(x), y)
        if not loss.isfinite():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def item_then_continue(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        if not math.isfinite(loss.item()):
            continue
        loss.backward()
        optimizer.step()
    return net


def detached_then_break(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in itertools.islice(data, BAD + 1):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        if not math.isfinite(float(loss.detach())):
            break
        loss.backward()
        optimizer.step()
    return net


def data_then_continue(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        if math.isnan(loss.data):
            continue
        loss.backward()
        optimizer.step()
    return net


def unequal_then_continue(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in data:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        if loss != loss:
            continue
        loss.backward()
        optimizer.step()
    return net


def norm_then_zero_grad(data: Batches) -> nn.Module:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for x, y in data:
        loss = F.mse_loss(net(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if not torch.isfinite(norm):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
    return net


SKIPPING: dict[str, Loop] = {
    each.__name__: each
    for each in (
        isnan_then_continue,
        method_then_continue,
        item_then_continue,
        detached_then_break,
        data_then_continue,
        unequal_then_continue,
        norm_then_zero_grad,
    )
}


def only(attachment: Attachment) -> ScriptLoop:
    (loop,) = attachment.registry
    return loop


def journal(settings: RunSettings) -> list[dict[str, Any]]:
    lines = (Path(settings.run_dir) / "journal-r0.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "action" in line]


def state(module: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


def loaded(data: Batches) -> DataLoader[Any]:
    """The same batches from a data loader."""
    return DataLoader(TensorDataset(*(torch.cat(part) for part in zip(*data, strict=True))), batch_size=len(data[0][0]))


@pytest.mark.parametrize("loads", [False, True], ids=["list", "loader"])
@pytest.mark.parametrize("name", SKIPPING)
def test_a_batch_that_the_script_skips_is_an_incident(name: str, loads: bool, settings: RunSettings) -> None:
    torch.manual_seed(7)
    data = batches(bad=BAD)
    with attached(settings) as attachment:
        net = SKIPPING[name](loaded(data) if loads else data)  # type: ignore[arg-type]
        attachment.registry.record_abandoned()
        loop, summary = only(attachment), RunSummary.of(attachment)
    incident = loop.last_incident
    assert incident is not None
    assert (incident.step, incident.phase, incident.samples) == (BAD, "data", (2,))
    assert incident.cause is not None
    assert incident.cause.slug == "bad_input_data"
    assert incident.restored, "buffers as before the batch"
    assert (loop.tally.incidents, loop.tally.given_up) == (1, 1)
    assert [(line["step"], line["by"]) for line in journal(settings) if line["action"] == "skip"] == [(BAD, "script")]
    assert all(bool(t.isfinite().all()) for t in state(net))
    assert "1 step skipped (1 by the script itself), 0 rollbacks" in summary.lines(0)


@pytest.mark.parametrize("name", SKIPPING)
def test_a_healthy_loop_of_this_kind_is_unchanged_and_silent(
    name: str, settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(7)
    plain = state(SKIPPING[name](batches()))
    torch.manual_seed(7)
    with attached(settings) as attachment:
        guarded = state(SKIPPING[name](batches()))
        attachment.registry.record_abandoned()
    assert all(torch.equal(a, b) for a, b in zip(plain, guarded, strict=True))
    assert only(attachment).tally.incidents == 0
    assert capsys.readouterr().err == ""


def test_a_skip_at_the_end_of_an_epoch_is_put_back_before_the_evaluation(settings: RunSettings) -> None:
    with attached(settings):
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches(BAD + 1, bad=BAD):
            loss = F.mse_loss(net(x), y)
            if torch.isnan(loss):
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            assert bool(net(batches(1)[0][0]).isfinite().all())


def test_a_loss_that_is_printed_before_backward_is_not_given_up(settings: RunSettings) -> None:
    """The gradients are cleared between the forward and the backward pass, and the bad loss is read before."""
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches(bad=BAD):
            loss = F.mse_loss(net(x), y)
            loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
    tally = only(attachment).tally
    assert (tally.incidents, tally.given_up, tally.applied) == (1, 0, 11)


def test_an_evaluation_without_no_grad_is_not_training(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches(4):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
        net.eval()
        for x, y in batches(4, bad=2):
            F.mse_loss(net(x), y).item()
        attachment.registry.record_abandoned()
    assert only(attachment).tally.incidents == 0


def test_a_loss_replaced_by_zero_is_an_incident(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches(bad=BAD):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            if torch.isnan(loss):
                loss = torch.tensor(0.0, requires_grad=True)
            loss.backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    tally = only(attachment).tally
    assert (tally.attempted, tally.applied, tally.incidents, tally.given_up) == (12, 11, 1, 1)
    err = capsys.readouterr().err
    assert "the script replaced this non-finite loss by a constant, so there is no gradient" in err
    assert "error[NT101]: the input batch already contains NaN: x" in err
    assert "= sample: 2\n" in err
    assert "1 step skipped (1 by the script itself), 0 rollbacks" in summary.lines(0)
    assert all(bool(t.isfinite().all()) for t in state(net))


def test_heads_that_the_script_leaves_out_are_named(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        body, heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 1) for _ in range(3)])
        model = nn.ModuleDict({"body": body, "heads": heads})
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for number, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            features = body(x)
            outputs = [head(features) for head in heads]
            if number == BAD:
                outputs[1] = outputs[1] - outputs[1].detach()  # a constant head
                outputs[1] = outputs[1] / outputs[1]
            losses = [F.mse_loss(each, y) for each in outputs]
            torch.stack([each for each in losses if torch.isfinite(each)]).sum().backward()
            optimizer.step()
    loop = only(attachment)
    assert (loop.tally.incidents, loop.tally.left_out, loop.tally.applied) == (1, 1, 12)
    assert loop.last_incident is not None
    assert loop.last_incident.op == "aten.div"


@pytest.mark.filterwarnings("ignore")
def test_a_step_goes_on_with_the_good_head_of_a_normalised_model(settings: RunSettings) -> None:
    """A replay between the forward and the backward pass leaves buffers that the graph holds, and their counts."""

    def train() -> nn.Module:
        torch.manual_seed(0)
        body, heads = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4)), nn.ModuleList([nn.Linear(16, 1)] * 2)
        model = nn.ModuleDict({"body": body, "heads": heads})
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step, (x, _) in enumerate(batches(8)):
            features = torch.cat([body(row[None, None]).flatten(1) for row in x])  # several passes write the buffers
            size = features.new_tensor(0.0 if step == BAD else 1.0)
            losses = {"a": heads[0](features).square().mean(), "b": (heads[1](features) * size.log()).mean()}
            good = [loss for loss in losses.values() if torch.isfinite(loss)]
            optimizer.zero_grad()
            sum(good).backward()  # type: ignore[union-attr]
            optimizer.step()
        return model

    with attached(settings) as attachment:
        model = train()
        (loop,) = attachment.registry
        assert (loop.tally.attempted, loop.tally.applied, loop.tally.incidents) == (8, 8, 1)
    assert all(map(torch.equal, model.state_dict().values(), train().state_dict().values()))


@pytest.mark.parametrize(("sync", "bad"), [("step", BAD), ("late", 9)])
def test_inputs_that_the_script_cleans_are_counted(
    sync: Any, bad: int, settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with attached(replace(settings, own_policy=Policy(sync=sync))) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2, fused=True)
        data = TensorDataset(*(torch.cat(part) for part in zip(*batches(bad=bad), strict=True)))
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            F.mse_loss(net(torch.nan_to_num(x)), y).backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    index = 8 * bad + 2
    assert f"nan_to_num: sample 2 of the batch (dataset index {index}); further" in capsys.readouterr().err
    assert f"1 batch cleaned by the script with nan_to_num: dataset index {index}" in summary.lines(0)
    assert summary.incidents == 0
    assert [line["step"] for line in journal(settings) if line.get("cleaned")] == [bad]


def test_an_update_that_evaluates_the_model_is_not_run_again_without_its_closure(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    x, evaluations = torch.randn(9, 6), itertools.count()
    with attached(settings) as attachment:
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.8, max_iter=6)

        def closure() -> float:
            optimizer.zero_grad()
            loss = (net(x * (math.nan if next(evaluations) == 8 else 1.0)) - x.sum(1, keepdim=True)).pow(2).mean()
            loss.backward()
            return float(loss.detach())

        for _ in range(4):
            optimizer.step(closure)
        summary = RunSummary.of(attachment)
    assert (summary.steps, summary.applied, summary.state_finite) == (4, 3, True)
    err = capsys.readouterr().err
    assert "skipped: optimizer: parameter 0.weight: 48 of 48 values are NaN" in err
    assert "the loss could not be computed again: its update was not made again" in err
    assert "TypeError" not in err


def test_what_the_guard_itself_replaces_is_not_cleaned_by_the_script(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """It compares a bad input with the batch of the loader to find the sample."""
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        data = TensorDataset(*(torch.cat(part) for part in zip(*batches(bad=BAD), strict=True)))
        try:
            for x, y in DataLoader(data, batch_size=8):
                optimizer.zero_grad()
                F.binary_cross_entropy(net(x * 2).sigmoid(), y.sigmoid()).backward()
                optimizer.step()
        except RuntimeError as error:
            for loop in attachment.registry:
                loop.explain(error)
        summary = RunSummary.of(attachment)
    assert summary.incidents == 1
    assert "nan_to_num" not in capsys.readouterr().err + "".join(summary.lines(1))


def test_a_step_after_an_abandoned_loss_is_the_same_step(settings: RunSettings) -> None:
    """The script calls `optimizer.step()` for every batch, also where it ran no backward pass."""
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        before: list[Tensor] = []
        for number, (x, y) in enumerate(batches(bad=BAD)):
            optimizer.zero_grad(set_to_none=False)  # zeros: Adam would move the weights by its momentum
            loss = F.mse_loss(net(x), y)
            if number == BAD:
                before = state(net)
            if torch.isfinite(loss):
                loss.backward()
            optimizer.step()
            schedule.step()
            if number == BAD:
                assert all(map(torch.equal, before[:-3], state(net)[:-3]))
    tally = only(attachment).tally
    assert (tally.attempted, tally.applied, tally.given_up) == (12, 11, 1)
    assert schedule.last_epoch == 11
    (skipped,) = (line for line in journal(settings) if line["action"] == "skip")
    assert (skipped["step"], skipped["by"]) == (BAD, "script")
    assert "grad_norm" not in skipped


@pytest.mark.parametrize("leaves_out", [True, False])
def test_a_batch_that_is_tested_before_the_model_is_called(leaves_out: bool, settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        data = TensorDataset(*(torch.cat(part) for part in zip(*batches(bad=BAD), strict=True)))
        for x, y in DataLoader(data, batch_size=8):
            if torch.isnan(x).any() and leaves_out:
                continue
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    loop = only(attachment)
    assert (loop.tally.attempted, loop.tally.applied, loop.tally.incidents) == (12, 11, 1)
    assert loop.tally.given_up == leaves_out
    (skipped,) = (line for line in journal(settings) if line["action"] == "skip")
    assert (skipped["step"], skipped["batch"], skipped["by"]) == (BAD, BAD, "script" if leaves_out else "guard")
    incident = loop.last_incident
    assert incident is not None
    assert incident.cause is not None
    assert (incident.cause.slug, incident.dataset_indices) == ("bad_input_data", (42,))
    assert ("the script left this batch out before it called the model" in incident.notes) is leaves_out


def test_a_batch_that_is_tested_after_its_step_is_not_left_out(settings: RunSettings) -> None:
    """NaN may stand for targets that were not measured; the loop prints how many there are when the step was made."""
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        x, y = (torch.cat(part) for part in zip(*batches(), strict=True))
        y = y.masked_fill(torch.arange(len(y))[:, None] % 3 == 0, torch.nan)
        for inputs, targets in DataLoader(TensorDataset(x, y), batch_size=8):
            seen = ~torch.isnan(targets)
            optimizer.zero_grad()
            F.mse_loss(net(inputs)[seen], targets[seen]).backward()
            optimizer.step()
            print(torch.isnan(targets).float().mean().item())
    loop = only(attachment)
    assert (loop.tally.attempted, loop.tally.applied, loop.tally.incidents) == (12, 12, 0)


def zero_bad(net: nn.Module) -> None:
    for parameter in net.parameters():
        assert parameter.grad is not None
        if torch.isnan(parameter.grad).any():
            parameter.grad.zero_()


def clean_in_place(net: nn.Module) -> None:
    for parameter in net.parameters():
        assert parameter.grad is not None
        torch.nan_to_num_(parameter.grad)


def clean_copies(net: nn.Module) -> None:
    for parameter in net.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@pytest.mark.parametrize("repair", [zero_bad, clean_in_place, clean_copies])
def test_gradients_that_the_script_repairs_are_an_incident_of_an_applied_step(
    repair: Callable[[nn.Module], None], settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for number, (x, y) in enumerate(batches()):
            output = net(x)
            difference = output - (output.detach() if number == BAD else y)
            optimizer.zero_grad()
            difference.square().sum(1).sqrt().mean().backward()
            repair(net)
            optimizer.step()
        summary = RunSummary.of(attachment)
    loop = only(attachment)
    assert (loop.tally.incidents, loop.tally.left_out, loop.tally.applied) == (1, 1, 12)
    incident = loop.last_incident
    assert incident is not None
    assert incident.cause is not None
    assert (incident.step, incident.cause.slug) == (BAD, "singular_gradient_at_zero")
    err = capsys.readouterr().err
    assert "the script changed its non-finite gradients to finite ones and made the step" in err
    assert "of its data" not in err
    assert "1 applied step with non-finite values that the script left out" in summary.lines(0)
    assert summary.state_finite


@pytest.mark.parametrize("skips", [True, False])
def test_an_output_that_is_tested_before_there_is_a_loss(skips: bool, settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches(bad=BAD):
            output = net(x)
            if torch.isnan(output).any():
                if skips:
                    continue
                output = torch.where(torch.isnan(output), y, output)
            optimizer.zero_grad()
            F.mse_loss(output, y).backward()
            optimizer.step()
    loop = only(attachment)
    assert (loop.tally.attempted, loop.tally.applied, loop.tally.incidents) == (12, 11, 1)
    assert loop.tally.given_up == skips  # without a skip the buffers are bad, and the guard refuses the step
    incident = loop.last_incident
    assert incident is not None
    assert incident.cause is not None
    assert (incident.step, incident.cause.slug, incident.samples) == (BAD, "bad_input_data", (2,))
    assert all(bool(t.isfinite().all()) for t in state(net))


def test_spikes_are_in_the_summary(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    with attached(settings) as attachment:
        net = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(net.parameters(), 1e-6)
        for number, (x, y) in enumerate(batches(120)):
            optimizer.zero_grad()
            F.mse_loss(net(x), y * 1000 if number > 60 and number % 5 == 0 else y).backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    err = capsys.readouterr().err
    assert err.count("; recent steps had about ") == 6
    assert "; further spikes are only counted\n" in err
    assert summary.spikes > 6
    assert f"{summary.spikes} spikes of loss or gradient norm" in summary.lines(0)


def test_a_run_that_learns_nothing_is_said(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for number in range(40):
            x, y = batches(1)[0]
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            if number >= 10:
                loss = torch.tensor(0.0, requires_grad=True)
            loss.backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    err = capsys.readouterr().err
    assert "step 29: no gradient has reached any parameter for 20 steps, since step 10" in err
    assert "no gradient from step 10 to the end: nothing was learned (NT505 dead_training)" in summary.lines(0)


class Centred(nn.Module):
    """A loss with a running centre, as in self-distillation."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.centre.mul_(0.9).add_(0.1 * output.detach().mean())
        return (output - self.centre - target).square().mean()


@pytest.mark.parametrize("bad", [0, BAD], ids=["first step", "later"])
def test_a_loss_module_with_a_buffer_is_put_back(bad: int, settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net, criterion = Net(), Centred()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches(bad=bad):
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            optimizer.step()
    tally = only(attachment).tally
    assert (tally.incidents, tally.applied) == (1, 11)
    assert bool(criterion.centre.isfinite())


class Teacher(nn.Module):
    """A network with running statistics that is never trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))

    def calls(self) -> int:
        """How many batches its statistics have counted."""
        counted = self.norm.num_batches_tracked
        assert counted is not None
        return int(counted)


@pytest.mark.parametrize("bad", [0, BAD], ids=["first step", "later"])
def test_a_teacher_that_is_called_before_the_model_is_put_back(bad: int, settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net, teacher, second = Net(), Teacher(), Teacher()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        counts: list[int] = []
        for x, _ in batches(bad=bad):
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = teacher(x) + second(x)
            F.mse_loss(net(x), wanted).backward()
            optimizer.step()
            counts.append(teacher.calls())
    tally = only(attachment).tally
    assert (tally.incidents, tally.applied) == (1, 11)
    assert all(bool(t.isfinite().all()) for t in (*state(teacher), *state(second), *state(net)))
    assert counts == [number + (number < bad) for number in range(12)], "the bad batch is not counted"


def test_an_evaluation_of_a_teacher_between_steps_stays(settings: RunSettings) -> None:
    with attached(settings):
        net, teacher = Net(), Teacher()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for number, (x, _) in enumerate(batches(bad=BAD)):
            optimizer.zero_grad()
            with torch.no_grad():
                if number == BAD:
                    teacher(batches(1)[0][0])  # on other data: no step follows
                wanted = teacher(x)
            F.mse_loss(net(x), wanted).backward()
            optimizer.step()
    assert teacher.calls() == 12
    assert all(bool(t.isfinite().all()) for t in state(teacher))


def test_a_second_step_after_a_refused_one_stays_refused(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """`scaler.step(optimizer)` and then `optimizer.step()`: a real bug that doubles each update."""
    with attached(settings):
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu")
        kept: list[Tensor] = []
        for number, (x, y) in enumerate(batches(bad=BAD)):
            before = state(net)
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(net(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.step()
            if number == BAD:
                kept = [a for a, b in zip(before, state(net), strict=True) if not torch.equal(a, b)]
    assert not kept, "not one tensor moved"
    assert [line["step"] for line in journal(settings)] == list(range(12)), "one line for each step"
    assert "optimizer.step() is called twice for each backward pass" in capsys.readouterr().err


def test_gradients_that_are_never_cleared_are_said(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches():
            F.mse_loss(net(x), y).backward()
            optimizer.step()
        summary = RunSummary.of(attachment)
    assert capsys.readouterr().err.count("the gradients are not cleared between steps") == 1
    assert "the gradients were not cleared in the last 11 steps (NT871 zero_grad_missing)" in summary.lines(0)


def test_gradients_cleared_by_hand_are_cleared(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with attached(settings):
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        for x, y in batches():
            for parameter in net.parameters():
                parameter.grad = None
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    assert capsys.readouterr().err == ""


def test_an_optimizer_over_plain_tensors_is_guarded(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        weight = torch.zeros(6, 1, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for x, y in batches(bad=BAD):
            optimizer.zero_grad()
            F.mse_loss(x @ weight, y).backward()
            optimizer.step()
    tally = only(attachment).tally
    assert (tally.incidents, tally.applied) == (1, 11)
    assert bool(weight.isfinite().all())


def test_tensors_that_are_updated_by_hand_are_checked_at_the_end(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.zeros(6, 1, requires_grad=True)
    with attached(settings) as attachment:
        for x, y in batches(bad=BAD):
            F.mse_loss(x @ weight, y).backward()
            with torch.no_grad():
                assert weight.grad is not None
                weight -= 0.1 * weight.grad
                weight.grad = None
        summary = RunSummary.of(attachment)
    assert not summary.state_finite
    assert "the run ends with NON-FINITE values in a tensor of shape (6, 1); the run failed" in summary.lines(1)
    err = capsys.readouterr().err
    assert f"step {BAD} applied; " in err
    assert "; lr" not in err  # there is no learning rate that anything knows of
    words = "tensor0 is not finite any more: the script made its update by hand after the value above"
    assert err.count(words) == 1
    assert err.count("error[") == 1
    assert summary.loose_values == 12 - BAD


def test_inf_gradients_are_seen_before_they_are_clipped_to_nan(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        scale = nn.Parameter(torch.ones(4))
        net = nn.Module()
        net.register_parameter("scale", scale)
        optimizer = torch.optim.SGD([scale], 0.1)
        for number in range(4):
            optimizer.zero_grad()
            loss = (scale * torch.zeros(4) if number == 2 else scale).sqrt().sum()
            loss.backward()
            nn.utils.clip_grad_norm_([scale], 1.0)
            optimizer.step()
    incident = only(attachment).last_incident
    assert incident is not None
    assert incident.step == 2
    assert incident.cause is not None
    assert incident.cause.slug == "singular_gradient_at_zero"


def test_a_failure_that_does_not_repeat_is_said_once(settings: RunSettings) -> None:
    """The gradient is made bad by the script itself, after the backward pass: no replay can show that."""
    with attached(settings) as attachment:
        net = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for number, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            if number == BAD:
                assert net.weight.grad is not None
                net.weight.grad[0, 2] = math.inf
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    incident = only(attachment).last_incident
    assert incident is not None
    assert [finding.stats.describe() for finding in incident.findings if finding.stats] == ["1 of 6 values is +Inf"]
    assert [note for note in incident.notes if "finite" in note] == [
        (
            "what the model returns is finite in a replay: the cause is in the code around it, the model replaced "
            "the bad value itself, or the failure does not repeat with the same inputs"
        )
    ]


def test_an_input_of_one_of_two_calls_is_named_by_its_argument(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        for x, y in batches(bad=BAD):
            optimizer.zero_grad()
            (F.mse_loss(net(x), y) + F.mse_loss(net(x + 0.01), y)).backward()
            optimizer.step()
    incident = only(attachment).last_incident
    assert incident is not None
    assert "args[0]" not in json.dumps(incident.to_dict())


def test_epoch_batch_and_the_index_below_a_subset_are_named(settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        x, y = (torch.cat(part) for part in zip(*batches(4), strict=True))
        x[25, 0] = math.nan
        data = Subset(TensorDataset(x, y), list(range(31, -1, -1)))
        for _ in range(2):
            for inputs, target in DataLoader(data, batch_size=8):
                optimizer.zero_grad()
                F.mse_loss(net(inputs), target).backward()
                optimizer.step()
    first, second = (line for line in journal(settings) if line["action"] == "skip")
    assert (first["epoch"], first["batch"], second["epoch"], second["batch"]) == (0, 0, 1, 0)
    assert first["by"] == "guard"
    folder = next(Path(settings.run_dir).glob("incidents/000000-*"))
    incident = json.loads((folder / "incident.json").read_text())
    assert (incident["samples"], incident["dataset_indices"]) == ([6], [6])
    assert "the dataset is a Subset: in the dataset below it the index is 25" in incident["notes"]
    assert only(attachment).tally.incidents == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_a_disabled_scaler_does_not_break_a_healthy_run(enabled: bool, settings: RunSettings) -> None:
    with attached(settings) as attachment:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        for x, y in batches(bad=BAD):
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(net(x), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert only(attachment).tally.applied == 11


def test_a_loop_with_a_copy_of_the_weights_that_skips_by_itself(settings: RunSettings) -> None:
    """Mixed precision by hand: gradients go to the copy that the optimizer owns, and are cleared without zero_grad."""

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        net = nn.Linear(6, 1)
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in net.parameters()]
        optimizer = torch.optim.AdamW(copies, 1e-2)
        for x, y in batches(bad=BAD):
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.grad.detach_().zero_()
            F.mse_loss(net(x), y).backward()
            for copy, parameter in zip(copies, net.parameters(), strict=True):
                assert parameter.grad is not None
                copy.grad = parameter.grad.clone()
            norm = float(torch.stack([copy.grad.norm() for copy in copies if copy.grad is not None]).norm())
            if not math.isfinite(norm):
                for copy in copies:
                    copy.grad = None
                continue
            optimizer.step()
            for copy, parameter in zip(copies, net.parameters(), strict=True):
                parameter.detach().copy_(copy)
        return [copy.detach() for copy in copies]

    plain = train()
    with attached(settings) as attachment:
        guarded = train()
        summary = RunSummary.of(attachment)
    assert all(map(torch.equal, plain, guarded)), "the good step after the skipped one is made"
    assert (summary.applied, summary.skipped, summary.incidents, summary.left_out) == (11, 0, 1, 1)
    incident = only(attachment).last_incident
    assert incident is not None
    assert incident.notes[0] == "an earlier loss of this step is not finite, and its gradients are not in the step"


class Warns(nn.Module):
    """Prints when its values are bad, and warns when it is given a single sample, as `std` does."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        if not bool(out.isfinite().all()):
            print("bad values in the model")
        if len(x) == 1:
            warnings.warn("a batch of one", stacklevel=1)
        return out


def test_what_a_model_prints_is_printed_once(settings: RunSettings, capsys: pytest.CaptureFixture[str]) -> None:
    with attached(settings):
        net = Warns()
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        for x, y in batches(bad=BAD):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    assert capsys.readouterr().out == "bad values in the model\n"


class Refusing(nn.Module):
    """An encoder that draws from a distribution, which refuses NaN and a wrong shape; a script may call it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        return torch.distributions.Normal(self.inner(values), 1.0, validate_args=True).rsample()


class Encoded(nn.Module):
    """A model whose script calls the encoder, or the whole, or both."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Refusing()
        self.head = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.encoder(values))


@pytest.mark.parametrize("calls_whole", [False, True])
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("bad", [True, False])
def test_an_exception_in_a_part_that_is_called_directly(
    calls_whole: bool, at: int, bad: bool, settings: RunSettings
) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = Encoded()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(4):
            values = torch.randn(8, 4)
            if step == at:
                values = values * math.nan if bad else values[:, :3]
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean() if calls_whole else 0.0
            (loss + model.head(model.encoder(values)).square().mean()).backward()
            optimizer.step()

    with attached(settings) as attachment:
        with pytest.raises((ValueError, RuntimeError)) as raised:
            train()
        (loop,) = attachment.registry
        found = loop.explain(raised.value)
    assert (found is not None) is bad
    if found is not None:
        assert (found.step, found.phase) == (at, "data")


def train_on_rollouts(spoiled: Callable[[int, int], bool], *, rollouts: int, renewed: bool = False) -> None:
    """Eight updates are made from the advantages of each rollout.

    Args:
        spoiled: whether the advantages of a rollout are bad in an update, by the numbers of both.
        rollouts: how many there are.
        renewed: the advantages are made again for each update.
    """
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for rollout in range(rollouts):
        advantages = torch.randn(32) * (math.nan if spoiled(rollout, 0) else 1.0)
        for update in range(8):
            if renewed:
                advantages = torch.randn(32) * (math.nan if spoiled(rollout, update) else 1.0)
            rows = torch.arange(4 * update, 4 * update + 4)
            loss = (model(torch.randn(4, 4)).squeeze(1) * advantages[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_one_bad_value_from_which_many_updates_are_made_does_not_end_the_run(
    settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    with attached(settings) as attachment:
        train_on_rollouts(lambda rollout, _: rollout == 1, rollouts=3)
        (loop,) = attachment.registry
    assert loop.stopped is None
    assert (loop.tally.applied, loop.tally.skipped) == (16, 8)
    said = capsys.readouterr().err
    assert "given the same value as the step before, counted once; " in said
    assert "3 of 5 in a row" not in said


@pytest.mark.parametrize(("first", "renewed"), [(0, False), (1, True)])
def test_bad_values_of_every_update_end_the_run(
    first: int, renewed: bool, settings: RunSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Next door: nothing was applied before, or each update has bad values of its own."""
    with attached(settings) as attachment:
        with pytest.raises(NonFiniteError):
            train_on_rollouts(lambda rollout, _: rollout >= first, rollouts=3, renewed=renewed)
        (loop,) = attachment.registry
    assert loop.tally.skipped == 6
    assert "counted once" not in capsys.readouterr().err


def test_a_value_that_stays_bad_ends_the_run_by_the_window(settings: RunSettings) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model, scale = nn.Linear(4, 1), torch.ones(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for step in range(100):
            if step == 3:
                scale.fill_(math.nan)
            loss = (model(torch.randn(4, 4)).squeeze(1) * scale).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    with attached(settings) as attachment:
        with pytest.raises(NonFiniteError, match="51 incidents in 200 steps, 50 are allowed"):
            train()
        (loop,) = attachment.registry
    assert loop.tally.skipped == 51
