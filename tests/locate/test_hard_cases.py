"""Code that makes locating hard. Each case must be right, or say honestly what it does not know."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import nantrap
from nantrap import Policy

good = torch.tensor([[0.2, 0.4, 0.6], [0.3, 0.5, 0.7]])
zeros = torch.zeros(2, 3)
ones = torch.ones(2, 3)


class Part(nn.Module):
    """A module that runs the function it is given, and has a parameter."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self.gain * x)
        return result


def model_of(function: Any) -> nn.Sequential:
    return nn.Sequential(Part(lambda x: x * 1.0), Part(function), Part(lambda x: x * 1.0))


def place(incident: Any) -> tuple[Any, ...]:
    return incident.step, incident.phase, incident.module, incident.op


def in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y.div_(x.detach().abs())
    return y


def through_a_view(x: Tensor) -> Tensor:
    y = x * 1.0
    y[:, 1:] = x[:, 1:].log()
    return y


def sparse_product(x: Tensor) -> Tensor:
    return torch.sparse.mm((x * 1e18).to_sparse(), x.t() * 1e18).sum() * 1e-30


@pytest.mark.parametrize(
    ("function", "bad", "op"),
    [
        pytest.param(in_place, zeros, "aten.div_", id="in-place"),
        pytest.param(through_a_view, zeros, "aten.log", id="view"),
        pytest.param(lambda x: torch.fft.fft(x).div(x.abs()).abs(), zeros, "aten.div", id="complex"),
        pytest.param(lambda x: x - (x.detach() / x.detach()), zeros, "aten.div", id="no graph"),
        pytest.param(
            lambda x: checkpoint(lambda y: y.log(), x, use_reentrant=False), zeros, "aten.log", id="checkpoint"
        ),
        pytest.param(lambda x: checkpoint(lambda y: y.log(), x, use_reentrant=True), zeros, "aten.log", id="reentrant"),
        pytest.param(lambda x: torch.func.vmap(lambda row: row.log())(x), zeros, "aten.log", id="vmap"),
        pytest.param(lambda x: x.sum() + sparse_product(x.detach()), ones * 100, None, id="sparse"),
    ],
)
def test_forward_in_a_module(function: Any, bad: Tensor, op: str | None, first_incident: Any) -> None:
    model = model_of(function)
    incident = first_incident(model, lambda batch: model(batch).mean(), [good, bad])
    assert place(incident)[:3] == (1, "forward", "1")
    if op is not None:
        assert incident.op == op
        assert incident.source is not None
        assert not incident.source.inferred


@pytest.mark.parametrize(
    ("function", "bad", "op", "node"),
    [
        pytest.param(
            lambda x: torch.where(x > 0.1, x.log(), x), zeros, "aten.div", "LogBackward0", id="unselected branch"
        ),
        pytest.param(
            lambda x: torch.where(x < 50, x.exp(), x), ones * 200, "aten.mul", "ExpBackward0", id="unselected overflow"
        ),
        pytest.param(lambda x: (x * x).sum(1).sqrt(), zeros, "aten.div", "SqrtBackward0", id="sqrt"),
        pytest.param(
            lambda x: checkpoint(lambda y: torch.where(y > 0.1, y.log(), y), x, use_reentrant=False),
            zeros,
            "aten.div",
            "LogBackward0",
            id="checkpoint",
        ),
        pytest.param(
            lambda x: checkpoint(lambda y: torch.where(y > 0.1, y.log(), y), x, use_reentrant=True),
            zeros,
            "aten.div",
            "LogBackward0",
            id="reentrant",
        ),
        pytest.param(
            lambda x: torch.func.vmap(lambda row: row.sqrt())(x), zeros, "aten.div", "SqrtBackward0", id="vmap"
        ),
    ],
)
def test_backward_in_a_module(function: Any, bad: Tensor, op: str, node: str, first_incident: Any) -> None:
    model = model_of(function)
    incident = first_incident(model, lambda batch: model(batch).mean(), [good, bad])
    assert place(incident) == (1, "backward", "1", op)
    assert incident.node == node


class Reciprocal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient / x


def test_a_custom_function(first_incident: Any) -> None:
    model = model_of(Reciprocal.apply)
    incident = first_incident(model, lambda batch: model(batch).mean(), [good, zeros])
    assert place(incident) == (1, "backward", "1", "aten.div")
    assert incident.node == "ReciprocalBackward"


def test_double_backward(first_incident: Any) -> None:
    model = model_of(torch.relu)

    def penalty(batch: Tensor) -> Tensor:
        x = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return model(batch).mean() + (slope.square().sum(1).sqrt() - 1).square().mean()

    incident = first_incident(model, penalty, [good, -ones])
    assert place(incident) == (1, "backward", "loss", "aten.div")
    assert incident.node == "SqrtBackward0"


def test_dropout_is_replayed_with_the_same_mask(first_incident: Any) -> None:
    model = model_of(lambda x: torch.dropout(x + 1.0, 0.2, train=True).log().clamp(max=5.0))
    batches = [torch.ones(1, 3)] * 40
    incident = first_incident(model, lambda batch: model(batch).mean(), batches)
    assert incident is not None
    assert place(incident)[1:] == ("forward", "1", "aten.log")


def test_recurrence_names_the_call(first_incident: Any) -> None:
    cell = Part(lambda x: x.square())

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(9):
                x = self.cell(x)
            return x

    model = Recurrent()
    incident = first_incident(model, lambda batch: model(batch).mean(), [good, ones * 100])
    assert place(incident)[1:] == ("forward", "cell", "aten.pow")
    assert incident.call == 4  # 1e2, 1e4, 1e8, 1e16, 1e32, Inf
    growth = [frame.absmax for frame in incident.frames if frame.op == "aten.pow" and frame.absmax is not None]
    assert growth == sorted(growth)
    assert growth[-1] == pytest.approx(1e32, rel=1e-4)


def test_a_shared_module_keeps_its_first_name(first_incident: Any) -> None:
    shared = Part(lambda x: x.log())
    model = nn.Sequential(Part(lambda x: x + 1.0), nn.Sequential(shared), shared)
    incident = first_incident(model, lambda batch: model(batch).mean(), [good + 2, good - 0.2])
    assert place(incident)[1:] == ("forward", "1.0", "aten.log")
    assert incident.call == 1


def test_frames_follow_the_data_and_not_the_program(attempt: Any) -> None:
    def two_branches(x: Tensor) -> Tensor:
        large = x * 1e20
        other = x + 1.0
        other = other.cos().cos().cos().cos().cos().cos().cos().cos().cos().cos().cos()
        return large * 1e20 + other

    model = model_of(two_branches)
    incident = attempt(model, lambda batch: model(batch).mean(), [ones])
    assert [frame.op for frame in incident.frames][-1] == "aten.mul"
    assert "aten.cos" not in {frame.op for frame in incident.frames}
    assert incident.frames[-2].absmax == pytest.approx(1e20)
    assert incident.frames[-1].origin


class Numbered(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        value = torch.tensor([0.5, 0.0 if index == 5 else 0.25])
        return {"x": value, "index": torch.tensor(index)}


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader(workers: int, attempt: Any) -> None:
    loader = DataLoader(Numbered(), batch_size=4, num_workers=workers)
    model = model_of(torch.log)
    incident = attempt(model, lambda batch: model(batch["x"]).mean(), loader)
    assert place(incident) == (1, "forward", "1", "aten.log")
    assert incident.samples == (1,)
    assert incident.dataset_indices == (5,)


def test_a_batch_changed_in_place_is_said(attempt: Any) -> None:
    model = model_of(torch.log)

    def loss(batch: Tensor) -> Tensor:
        batch.sub_(0.5)
        return model(batch).mean()

    incident = attempt(model, loss, [ones.clone() * 0.5])
    assert any("changed the batch in place (batch)" in note for note in incident.notes)


def test_a_generator_as_batch_is_said(attempt: Any) -> None:
    model = model_of(torch.log)

    def numbers() -> Iterator[Tensor]:
        yield zeros

    incident = attempt(model, lambda batch: model(next(batch)).mean(), [numbers()])
    assert any("iterator" in note for note in incident.notes)
    assert (incident.phase, incident.op) == ("forward", "aten.log")


def test_side_effects_of_the_loss_function_do_no_harm(attempt: Any) -> None:
    model = model_of(torch.log)
    calls: list[int] = []

    def loss(batch: Tensor) -> Tensor:
        calls.append(1)
        return model(batch).mean()

    incident = attempt(model, loss, [good, zeros])
    assert place(incident) == (1, "forward", "1", "aten.log")
    assert len(calls) == 2, "it was run again, and the program's own list is as before"


def test_an_exception_in_the_replay_keeps_the_origin(attempt: Any) -> None:
    model = model_of(torch.log)
    turn = iter(range(99))  # not restored by a replay

    def loss(batch: Tensor) -> Tensor:
        out = model(batch)
        if next(turn) == 1 and not bool(out.isfinite().all()):
            raise RuntimeError("assertion of the user")
        return out.mean()

    incident = attempt(model, loss, [zeros])
    assert place(incident) == (0, "forward", "1", "aten.log")
    assert any("assertion of the user" in note for note in incident.notes)


def test_eval_mode_stays_eval_mode(first_incident: Any) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), Part(torch.log)).eval()
    incident = first_incident(model, lambda batch: model(batch).mean(), [good, zeros])
    assert place(incident) == (1, "forward", "1", "aten.log")
    assert not model.training


def test_a_transient_fault_is_called_transient(first_incident: Any) -> None:
    model = model_of(lambda x: x * 1.0)
    calls: list[int] = []

    def flip(module: nn.Module, args: Any, out: Tensor) -> None:
        calls.append(1)
        if len(calls) == 2:
            out.detach().numpy()[0, 0] = float("nan")  # past PyTorch: no operation did it

    model[1].register_forward_hook(flip)
    incident = first_incident(model, lambda batch: model(batch).mean(), [good, good])
    assert incident.step == 1
    assert incident.exact is False
    assert any("finite" in note for note in incident.notes)


def test_batch_norm_statistics_are_a_sink(first_incident: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).half()
    x = torch.randn(16, 3).half()
    incident = first_incident(model, lambda batch: model(batch).float().mean(), [x, x * 4000])
    assert place(incident) == (1, "forward", "1", "aten.native_batch_norm")


def test_bad_weights_name_the_operation_that_computes_with_them(first_incident: Any) -> None:
    last = nn.Linear(3, 1)
    model = nn.Sequential(nn.Linear(3, 3), last)
    with torch.no_grad():
        last.weight[0, 0] = float("nan")
    incident = first_incident(model, lambda batch: model(batch).mean(), [good])
    assert place(incident) == (0, "state", "1", "aten.addmm")


def test_a_failure_inside_locating_does_no_harm(attempt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("nantrap.locate.locate")

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("inside the diagnosis")

    monkeypatch.setattr(module, "replay_step", broken)
    model = model_of(torch.log)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    incident = attempt(model, lambda batch: model(batch).mean(), [zeros])
    assert any("ZeroDivisionError: inside the diagnosis" in note for note in incident.notes)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_nothing_is_left_behind(first_incident: Any) -> None:
    """Locating ends with the random stream, the mode, the buffers and the gradients it found."""
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), Part(lambda x: x.abs().log()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    states = []
    for diagnose in ("off", "locate"):
        torch.manual_seed(3)
        with torch.no_grad():
            model[0].reset_running_stats()  # type: ignore[operator]
        policy = Policy(diagnose=diagnose)  # type: ignore[arg-type]
        first_incident(model, lambda batch: model(batch).mean(), [good, zeros], optimizer=optimizer, policy=policy)
        buffers = [buffer.clone() for buffer in model.buffers()]
        states.append((torch.get_rng_state(), model.training, buffers))
    assert torch.equal(states[0][0], states[1][0])
    assert states[0][1] == states[1][1]
    assert all(torch.equal(a, b) for a, b in zip(states[0][2], states[1][2], strict=True))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: torch.where(x > 0.1, x.detach().log(), x), id="unused log(0)"),
        pytest.param(lambda x: x.masked_fill(x < 0.1, float("-inf")).logsumexp(1), id="mask"),
        pytest.param(lambda x: torch.relu(x - 0.25).sqrt(), id="relu erases"),
        pytest.param(lambda x: torch.empty(2, 3).fill_(1.0) * x, id="empty, then filled"),
    ],
)
def test_benign_stays_benign(function: Any, first_incident: Any) -> None:
    model = model_of(function)
    batch = good.clone()
    batch[0, 0] = 0.0
    assert first_incident(model, lambda b: model(b).mean(), [good, batch, good]) is None


def test_the_guard_of_another_model_looks_away_in_a_replay() -> None:
    """A generator's step calls the discriminator: a replay of one must not be a step of the other."""
    one, two = model_of(torch.log), model_of(lambda x: x * 1.0)
    guards = [nantrap.Guard(m, torch.optim.SGD(m.parameters(), lr=1e-9), quiet=True) for m in (one, two)]
    for batch in (good, zeros):
        outcome = guards[0].attempt(lambda b: two(one(b)).mean(), batch)
        guards[1].backward(two(batch).mean())
        assert guards[1].step().applied
    assert outcome.incident is not None
    assert outcome.incident.module == "1"


def test_a_buffer_that_takes_a_result_by_out_is_not_blamed_for_what_was_in_it() -> None:
    class Chunked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
            buffer = torch.empty(2 * len(hidden), len(weight))
            logits = torch.mm(hidden.log(), weight.t(), out=buffer[: len(hidden)])
            ctx.save_for_backward(hidden, weight)
            return logits.sum(-1)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            hidden, weight = ctx.saved_tensors
            spread = grad[:, None].expand(-1, len(weight))
            return spread @ weight, spread.t() @ hidden

    torch.manual_seed(0)
    body, head = nn.Linear(4, 8), nn.Linear(8, 5)
    model = nn.ModuleList([body, head])
    torch.use_deterministic_algorithms(True)  # torch.empty is then full of NaN
    try:
        with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
            incident = guard.attempt(lambda x: Chunked.apply(body(x), head.weight).mean(), torch.randn(4, 4)).incident
    finally:
        torch.use_deterministic_algorithms(False)
    assert incident is not None
    assert incident.op == "aten.log"
    assert incident.causes[0].slug == "domain_error"


def test_a_bad_table_in_a_closure_that_only_poisons_a_buffer_is_found() -> None:
    table = torch.randn(9, 3)
    table[4, 1] = float("nan")

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(3), nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.norm(table)
            result: Tensor = self.out(self.norm(x))
            return result

    model = Net()
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), quiet=True) as guard:
        incident = guard.attempt(lambda batch: model(batch).square().mean(), torch.randn(6, 3)).incident
    assert incident is not None
    assert (incident.module, incident.op) == ("norm", "aten.native_batch_norm")
    assert incident.source is not None
    assert incident.source.text.strip() == "self.norm(table)"
    assert [cause.slug for cause in incident.causes if cause.proven] == ["bn_buffers_poisoned"]


class _OwnGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        e = torch.exp(-x)
        return grad * (1 / (1 + e) + x * e / (1 + e) ** 2)


@pytest.mark.parametrize("repeatable", [True, False])
def test_the_backward_of_a_custom_function_is_placed_at_its_own_line(repeatable: bool) -> None:
    model = Part(lambda x: _OwnGate.apply(x * 300))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        batch = -torch.ones(4, 3)
        if repeatable:
            incident = guard.attempt(lambda b: model(b).mean(), batch).incident
        else:
            guard.backward(model(batch).mean())
            incident = guard.step().incident
    assert incident is not None
    assert (incident.phase, incident.op) == ("backward", "aten.exp")
    assert incident.source is not None
    assert (incident.source.function, incident.source.text.strip()) == ("_OwnGate.backward", "e = torch.exp(-x)")


@pytest.mark.parametrize("form", ["attempt", "two lines"])
def test_an_infinite_slope_that_relu_erases_is_not_blamed_for_another_one(form: str) -> None:
    """Both powers have an infinite slope at 0. After relu it is dropped; a matrix product of the same shape follows."""
    first, second = Part(lambda x: (x * (x > 0)).pow(0.3)), Part(lambda x: torch.relu(x) ** 0.3)
    model = nn.Sequential(first, nn.Linear(4, 4), second)
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-1.0] * 4, [-1.0] * 4, [1.0] * 4, [1.0] * 4]))  # type: ignore[operator]
        model[1].bias.zero_()  # type: ignore[operator]
    x = torch.ones(3, 4)
    x[1] = -1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        if form == "attempt":
            outcome = guard.attempt(lambda batch: model(batch).sum(), x)
        else:
            guard.backward(model(x).sum())
            outcome = guard.step()
    assert outcome.incident is not None
    assert place(outcome.incident) == (0, "backward", "0", "aten.pow")
