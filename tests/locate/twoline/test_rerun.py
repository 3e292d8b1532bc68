"""The loss computed again from its own source lines, in the two-line form."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import nantrap
from nantrap.incident import Incident
from nantrap.locate.twoline.rewriting import guarded_tree

AGAIN = "the loss was computed again from its source"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.outer = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.outer(torch.tanh(self.inner(x)))
        return result.squeeze(-1)


def batches(count: int = 3, bad: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for index in range(count):
        x, weights = torch.randn(4, 3, generator=generator), torch.ones(4)
        if index == bad:
            weights[2] = 0.0
        yield x, weights


def two_lines(compute: Callable[[nn.Module, Any], Any], model: nn.Module | None = None) -> Incident:
    torch.manual_seed(0)
    model = model or Model()
    found: list[Incident] = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for batch in batches():
            guard.backward(compute(model, batch))
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    return incident


def computed_again(incident: Incident) -> bool:
    return any(note.startswith(AGAIN) for note in incident.notes)


# ---- what it shows


def weighted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, counts = batch
    weight = 1.0 / counts  # without a gradient: the graph of the loss does not show who made the Inf
    return (weight * model(x).square()).mean()


def test_a_fault_outside_the_graph_has_its_line_its_sample_and_its_proof() -> None:
    incident = two_lines(weighted)
    assert computed_again(incident)
    assert (incident.phase, incident.module, incident.op) == ("forward", "loss", "aten.reciprocal")
    assert incident.source is not None
    assert incident.source.text.strip().startswith("weight = 1.0 / counts")
    assert incident.source.function == "weighted"
    assert incident.samples == (2,)
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("division_by_zero", True)
    assert incident.causes[0].fix is not None
    assert incident.causes[0].fix.verified


def test_a_backward_fault_in_a_helper() -> None:
    def distance(a: Tensor, b: Tensor) -> Tensor:
        return torch.sqrt((a - b) ** 2)

    def compute(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return (distance(out, out.detach() + (batch[1] - 0.0))).mean()

    incident = two_lines(compute)
    assert computed_again(incident)
    assert (incident.phase, incident.module, incident.causes[0].slug) == (
        "backward",
        "loss",
        "singular_gradient_at_zero",
    )
    assert incident.source is not None
    assert "torch.sqrt" in incident.source.text
    assert incident.source.function.endswith("distance")


class Squares:
    """A loss that is an object and no module."""

    def __init__(self, power: float) -> None:
        self.power = power

    def __call__(self, out: Tensor, counts: Tensor) -> Tensor:
        return (out.abs().pow(self.power) / counts).mean()


def test_a_fault_in_a_loss_that_is_a_callable_object() -> None:
    loss = Squares(2.0)
    incident = two_lines(lambda model, batch: loss(model(batch[0]), batch[1]))
    assert computed_again(incident)
    assert incident.source is not None
    assert incident.source.function == "Squares.__call__"
    assert "/ counts" in incident.source.text
    assert incident.causes[0].slug == "division_by_zero"


def test_a_batch_that_stands_in_the_call_of_the_model_alone_is_named_as_out_of_scale() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    found: list[Incident] = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for step in range(3):
            out = model(torch.randn(4, 3) * (1e20 if step == 1 else 1.0))
            loss = (out @ out.T).mean()
            guard.backward(loss)
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    assert computed_again(incident)
    assert incident.source is not None
    assert "out @ out.T" in incident.source.text
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("input_out_of_scale", False)


class Criterion(nn.Module):
    def forward(self, out: Tensor, counts: Tensor) -> Tensor:
        terms = [out.square() / counts]
        terms.append(out.abs())
        return torch.stack(terms).mean()


criterion = Criterion()


def through_a_module(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss: Tensor = criterion(model(batch[0]), batch[1])
    return loss


def through_a_lambda(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    divide = lambda a, b: a / b  # noqa: E731
    return divide(model(batch[0]).square(), batch[1]).mean()


def _power(out: Tensor, counts: Tensor, *, exponent: float = 1.0) -> Tensor:
    return (out**2 / counts**exponent).mean()


def through_a_partial(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functools.partial(_power, exponent=2.0)(model(batch[0]), batch[1])


def in_a_loop(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    total = torch.zeros(())
    out = model(batch[0])
    for row in range(4):
        total += out[row] / batch[1][row]
    return total


def as_terms(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    out = model(batch[0])
    return {"ratio": (out / batch[1]).mean(), "size": out.square().mean()}


def with_noise(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    noise = torch.randn_like(batch[0])  # drawn before the model is called
    return (model(batch[0] + noise) / batch[1]).mean()


def in_half_precision(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(batch[0])
    return (out.float() / batch[1]).mean()


def through_transforms(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    weights: dict[str, Tensor] = {name: parameter for name, parameter in model.named_parameters()}  # noqa: C416

    def value(x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, weights, (x[None],))
        return out.squeeze()

    slopes = vmap(grad(value))(batch[0])
    return (slopes.square().sum(1) / batch[1]).mean() + model(batch[0]).mean()


@torch.no_grad()
def _weights_without_a_graph(counts: Tensor) -> Tensor:
    return torch.ones(()) / counts


def through_a_function_under_no_grad(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) * _weights_without_a_graph(batch[1])).mean()


def _checked(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    @functools.wraps(function)
    def checking(out: Tensor, counts: Tensor) -> Tensor:
        assert out.shape == counts.shape
        return function(out, counts)

    return checking


@_checked
@torch.autocast("cpu", enabled=False)
def _ratio(out: Tensor, counts: Tensor) -> Tensor:
    return (out / counts).mean()


def through_decorators(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return _ratio(model(batch[0]), batch[1])


_own = torch.Generator().manual_seed(3)


def from_a_generator_of_its_own(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    noise = torch.randn(700, 3, generator=_own)[:4] + torch.rand(4, 1, generator=_own)
    return (model(batch[0] + noise) / batch[1]).mean()


@functools.lru_cache(maxsize=1)
def _exponent(shape: torch.Size) -> float:
    return 2.0 / len(shape)


def through_a_cache(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]).abs() ** _exponent(batch[0].shape) / batch[1]).mean()


class Counting(nn.Module):
    """Keeps a number itself, and another one in a buffer; both change the loss."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.rate = 0, 2.0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, out: Tensor, counts: Tensor) -> Tensor:
        self.calls += 1
        self.rate = self.rate - 0.25
        self.seen = self.seen + 1
        return (out / counts).mean() * self.rate * self.seen / self.calls


_counting = Counting()


def through_an_object_that_counts(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss: Tensor = _counting(model(batch[0]), batch[1])
    return loss


@pytest.mark.parametrize(
    "compute",
    [
        through_transforms, through_a_function_under_no_grad, through_decorators, through_a_cache,
        through_an_object_that_counts, from_a_generator_of_its_own,
        through_a_module, through_a_lambda, through_a_partial, in_a_loop, as_terms, with_noise, in_half_precision,
    ],
)  # fmt: skip
def test_forms_of_a_loss(compute: Callable[[nn.Module, Any], Any]) -> None:
    incident = two_lines(compute)
    assert computed_again(incident), incident.notes
    assert (incident.module, incident.op) == ("loss", "aten.div")
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("division_by_zero", True)


def test_an_object_that_counts_is_left_as_it_was() -> None:
    _counting.__init__()  # type: ignore[misc]
    two_lines(through_an_object_that_counts)
    assert (_counting.calls, _counting.rate, float(_counting.seen)) == (3, 1.25, 3.0)


def test_a_generator_of_the_program_is_left_as_it_was_and_the_batch_was_what_it_gave() -> None:
    _own.manual_seed(3)
    incident = two_lines(from_a_generator_of_its_own)
    assert computed_again(incident)
    expected = torch.Generator().manual_seed(3)
    for _ in range(3):
        torch.randn(700, 3, generator=expected), torch.rand(4, 1, generator=expected)
    assert torch.equal(_own.get_state(), expected.get_state())


class Parts(nn.ModuleDict):
    """Holds the model and is never called itself; the loss writes its buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__({"model": Model()})
        self.register_buffer("seen", torch.zeros(()))


@pytest.mark.parametrize("bad", [0, 1])
def test_a_model_whose_parts_are_called_and_whose_buffer_the_loss_writes(bad: int) -> None:
    torch.manual_seed(0)
    parts = Parts()

    def compute(x: Tensor, counts: Tensor) -> Tensor:
        out = parts["model"](x)
        with torch.no_grad():
            parts.seen.add_(1.0)
            weight = parts.seen / counts
        result: Tensor = (weight * out).mean()
        return result

    found: list[Incident] = []
    with nantrap.Guard(parts, torch.optim.SGD(parts.parameters(), lr=0.01), quiet=True) as guard:
        for x, counts in batches(2, bad):
            guard.backward(compute(x, counts))
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    assert computed_again(incident), incident.notes
    assert (incident.op, incident.causes[0].slug, incident.samples) == ("aten.div", "division_by_zero", (2,))


def test_a_part_that_is_called_more_often_than_calls_are_kept() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    found: list[Incident] = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.0), quiet=True) as guard:
        for x, counts in batches():
            state = x
            for _ in range(40):
                state = torch.tanh(model(state))
            with torch.no_grad():
                weight = 1.0 / counts
            guard.backward((weight * state.sum(1)).mean())
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    assert computed_again(incident), incident.notes
    assert (incident.op, incident.causes[0].slug) == ("aten.reciprocal", "division_by_zero")


def test_statements_of_the_loop_itself() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []
    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        for x, counts in batches(2):
            x = x * 2.0
            out = model(x)
            losses.append(float(out.detach().mean()))
            loss = (out.square() / counts).mean()
            if loss > 1e6 and not losses:
                continue
            guard.backward(loss)
            incident = guard.step().incident
    assert incident is not None
    assert computed_again(incident)
    assert incident.source is not None
    assert incident.source.text.strip() == "loss = (out.square() / counts).mean()"
    assert len(losses) == 2


@pytest.mark.parametrize("parts", [1, 2])
def test_the_last_micro_batch_of_a_loop_that_has_ended(parts: int) -> None:
    torch.manual_seed(0)
    model = Model()
    given = list(batches(2 * parts, bad=2 * parts - 1))
    incident = None
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for window in (given[:parts], given[parts:]):
            for batch in window:
                loss = weighted(model, batch) / len(window)
                guard.backward(loss)
            incident = guard.step().incident
    assert incident is not None
    assert computed_again(incident)
    assert incident.causes[0].proven
    assert incident.samples == (2,)


class OwnLoss(Model):
    """Computes its loss itself, as models of transformers do."""

    def forward(self, x: Tensor, counts: Tensor) -> Any:  # type: ignore[override]
        out = super().forward(x)
        return {"out": out, "loss": (out.square() / counts).mean()}


@pytest.mark.parametrize("divided", [1, 3])
def test_a_model_that_computes_its_own_loss_is_enough(divided: int) -> None:
    """No statement on the stack computes the loss: a generator does, which is not running now."""
    torch.manual_seed(0)
    model = OwnLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def losses() -> Iterator[Tensor]:
        for x, counts in batches(2):
            yield model(x, counts)["loss"] / divided

    with nantrap.Guard(model, optimizer, quiet=True) as guard:
        for loss in losses():
            guard.backward(loss)
            incident = guard.step().incident
    assert incident is not None
    assert "the loss was computed again by the model, which computes it itself" in incident.notes
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("division_by_zero", True)
    assert incident.samples == (2,)


def test_a_branch_that_leaves_the_function_was_not_taken() -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = nantrap.Guard(model, optimizer, quiet=True)

    def train(x: Tensor, counts: Tensor, *, only_look: bool = False) -> Incident | None:
        if only_look:
            loss = model(x).mean()
            return None
        loss = (model(x).square() / counts).mean()
        guard.backward(loss)
        return guard.step().incident

    with guard:
        (incident,) = filter(None, [train(x, counts) for x, counts in batches(2)])
    assert computed_again(incident)
    assert incident.causes[0].proven


# ---- what it never does


def test_side_effects_do_not_happen_again(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []

    def compute(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = (model(batch[0]) / batch[1]).mean()
        seen.append(float(loss.detach()))
        print("computed")
        return loss

    incident = two_lines(compute)
    assert computed_again(incident)
    assert len(seen) == 3
    assert capsys.readouterr().out.count("computed") == 3


class Averaging:
    """Keeps a number that a second run would not change by as much."""

    def __init__(self) -> None:
        self.average = 1.0

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.average = 0.5 * self.average + 0.1
        return (model(batch[0]) / batch[1]).mean()


_average = torch.zeros(())


def _writes_a_tensor_of_its_own(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    _average.add_(1.0)
    return (model(batch[0]) / batch[1]).mean()


_numbers = iter(range(100))


def _takes_from_an_iterator(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) / batch[1]).mean() + 0 * next(_numbers)


def _opens_a_file(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    with open("/dev/null") as file:
        file.read()
    return (model(batch[0]) / batch[1]).mean()


_seen: dict[str, int] = {"points": 0}


def _counted(x: Tensor) -> Tensor:
    _seen["points"] += 1
    return x.square().sum()


_slope_of_counted = grad(_counted)


def _transforms_what_counts(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) / batch[1]).mean() + 0 * grad(_counted)(batch[0]).sum()


def _holds_a_transform_of_what_counts(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) / batch[1]).mean() + 0 * _slope_of_counted(batch[0]).sum()


@pytest.mark.parametrize("compute", [_transforms_what_counts, _holds_a_transform_of_what_counts])
def test_what_a_transform_calls_has_no_effect_either(compute: Callable[[nn.Module, Any], Any]) -> None:
    _seen["points"] = 0
    two_lines(compute)
    assert _seen["points"] == 3


@pytest.mark.parametrize(
    "compute",
    [Averaging(), _writes_a_tensor_of_its_own, _takes_from_an_iterator, _opens_a_file],
)
def test_code_with_other_effects_is_not_run_again(compute: Callable[[nn.Module, Any], Any]) -> None:
    incident = two_lines(compute)
    assert not computed_again(incident)
    if isinstance(compute, Averaging):
        assert compute.average == ((1.0 * 0.5 + 0.1) * 0.5 + 0.1) * 0.5 + 0.1
    if compute is _writes_a_tensor_of_its_own:
        assert float(_average) == 3.0
    if compute is _takes_from_an_iterator:
        assert next(_numbers) == 3


def test_the_random_streams_and_the_model_are_left_as_they_were() -> None:
    def train(bad: int) -> tuple[Tensor, int, Tensor]:
        torch.manual_seed(0)
        model = Model()
        with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
            for index, batch in enumerate(batches(4, bad)):
                guard.backward(with_noise(model, batch))
                if index == 1:
                    drawn = torch.get_rng_state()
                guard.step()
                if index == 1:
                    assert torch.equal(drawn, torch.get_rng_state())
        return torch.get_rng_state(), model.calls, model.outer.weight.detach()

    stream, calls, weight = train(bad=1)
    healthy, healthy_calls, _ = train(bad=9)
    assert torch.equal(stream, healthy)
    assert calls in (healthy_calls - 1, healthy_calls)  # a skipped step takes its counter back
    assert bool(weight.isfinite().all())


def test_a_loss_that_differs_is_not_taken_for_the_same() -> None:
    """The loop scaled its input in place of itself: run again, it would be scaled twice. So it starts after that."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    incident = None
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for x, counts in batches(2):
            x = x / 255.0
            error = F.mse_loss(model(x).squeeze(-1) / counts, x[:, 0])
            guard.backward(error)
            incident = guard.step().incident
    assert incident is not None
    assert incident.causes[0].slug == "division_by_zero"
    assert incident.samples == (2,)  # of `x` as the loop made it, with the counts that belong to it


def test_attributes_that_other_tools_hang_on_syntax_trees_are_not_copied() -> None:
    class Refuses:
        def __deepcopy__(self, memo: object) -> object:
            raise AssertionError("the attribute was copied")

    tree = ast.parse("loss = head(x).mean()")
    shared = next(node for node in ast.walk(tree) if isinstance(node, ast.Load))
    shared.parent = Refuses()  # type: ignore[attr-defined]
    try:
        changed = guarded_tree(tree)
    finally:
        del shared.parent  # type: ignore[attr-defined]
    assert "head" in ast.unparse(changed)
    assert ast.unparse(tree) == "loss = head(x).mean()"


class Attention(nn.Module):
    """Batched products of matrices: `reshape` inside them records different nodes with and without a dispatch mode."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.out = nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        scores = (x @ x.transpose(-1, -2)).masked_fill((tokens == 0)[:, None, :], -torch.inf)
        result: Tensor = self.out(scores.softmax(dim=-1) @ x)
        return result


def test_attention_over_a_batch_that_the_loop_makes_itself() -> None:
    torch.manual_seed(0)
    model = Attention()
    found: list[Incident] = []
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for step in range(3):
            tokens = torch.randint(1, 9, (4, 5))
            if step == 1:
                tokens[2] = 0
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten(), ignore_index=0)
            guard.backward(loss)
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    assert computed_again(incident)
    assert incident.causes[0].slug == "softmax_fully_masked_row"
    assert incident.causes[0].proven
    assert [trial.finite for trial in incident.trials] == [True]
    assert incident.samples == (2,)


def test_a_sample_that_the_values_show_needs_no_run_of_its_own() -> None:
    """BatchNorm does not take a single sample, so the batch cannot be searched; its NaN is in one row all the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    batch = torch.randn(16, 3)
    batch[9] = torch.nan
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        incident = guard.attempt(lambda x: model(x).square().mean(), batch).incident
    assert incident is not None
    assert incident.samples == (9,)
    assert not any("cannot be found" in note for note in incident.notes)


@dataclasses.dataclass
class Rollout:
    """A batch as a dataclass: taken from an iterator, not unpacked."""

    x: Tensor
    weights: Tensor
    scale: float


def test_a_batch_that_is_a_dataclass() -> None:
    torch.manual_seed(0)
    model = Model()
    found: list[Incident] = []
    taken = iter([Rollout(x, weights, 0.5) for x, weights in batches()])
    with nantrap.Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), quiet=True) as guard:
        for _ in range(3):
            batch = next(taken)
            loss = (batch.scale * model(batch.x) / batch.weights).mean()
            guard.backward(loss)
            incident = guard.step().incident
            found += [incident] if incident is not None else []
    (incident,) = found
    assert computed_again(incident)
    assert (incident.module, incident.op, incident.cause is not None) == ("loss", "aten.div", True)
    assert incident.cause is not None
    assert (incident.cause.slug, incident.cause.proven) == ("division_by_zero", True)


def test_a_call_whose_output_is_gone_does_not_hide_the_others() -> None:
    """The outputs of the first two calls of a critic are averaged and forgotten before the third one is made."""
    torch.manual_seed(0)
    last, generator = nn.Linear(8, 1), torch.Generator().manual_seed(1)
    nn.init.zeros_(last.weight)
    critic = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), last)

    def penalty(real: Tensor, fake: Tensor) -> Tensor:
        part = torch.rand(16, 1, generator=generator)
        mixed = (part * real + (1 - part) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        return (slope.square().sum(1).sqrt() - 1).square().mean()

    with nantrap.Guard(critic, torch.optim.Adam(critic.parameters()), quiet=True) as guard:
        real, fake = torch.randn(16, 4, generator=generator), torch.randn(16, 4, generator=generator)
        guard.backward(critic(fake).mean() - critic(real).mean() + penalty(real, fake))
        incident = guard.step().incident
    assert incident is not None
    assert computed_again(incident), incident.notes
    assert (incident.causes[0].slug, incident.causes[0].proven) == ("singular_gradient_at_zero", True)
    assert incident.source is not None
    assert ".sqrt()" in incident.source.text
