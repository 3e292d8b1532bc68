"""My kernel or me: seven kernels with the faults of public reports, each with a correct twin and a plain form.

A broken kernel is named, with the rows in which it differs from the plain form; its twin does not fail; and operands
that no kernel could save are not laid to the kernel.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nantrap
from causes.test_unwritten_memory import memory_full_of_nan
from nantrap import Guard
from nantrap.incident import Incident
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

INF = float("inf")
ROWS, WIDTH = 6, 8


def with_gradient_of(operator: Any, plain: Any) -> None:
    """The derivative of the plain form is that of the operator."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.given = inputs

    def backward(ctx: Any, *gradients: Any) -> Any:
        leaves = [each.detach().requires_grad_(each.is_floating_point()) if isinstance(each, Tensor) else each
                  for each in ctx.given]  # fmt: skip
        with torch.enable_grad():
            result = plain(*leaves)
        outputs = result if isinstance(result, tuple) else (result,)
        wanted = [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]
        found = iter(torch.autograd.grad(outputs[:1], wanted, gradients[:1], allow_unused=True))
        return tuple(next(found) if isinstance(each, Tensor) and each.requires_grad else None for each in leaves)

    operator.register_autograd(backward, setup_context=setup)


@nantrap.ops.reference("kernels_of_tests::attention")
def plain_attention(q: Tensor, k: Tensor, keep: Tensor, good: bool) -> Tensor:
    scores = (q @ k.transpose(-1, -2)).masked_fill(~keep, -INF)
    weights = nantrap.ops.masked_softmax(q @ k.transpose(-1, -2), keep)
    assert scores.shape == weights.shape
    return weights @ k


@torch.library.custom_op("kernels_of_tests::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, keep: Tensor, good: bool) -> Tensor:
    """Divides each row by its sum, also where the whole row is masked."""
    scores = (q @ k.transpose(-1, -2)).masked_fill(~keep, -INF)
    top = scores.amax(-1, keepdim=True)
    if good:
        top = top.masked_fill(top == -INF, 0.0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights / (total.clamp_min(1e-30) if good else total)) @ k


@torch.library.custom_op("kernels_of_tests::scatter_to_experts", mutates_args=())
def scatter_to_experts(x: Tensor, expert: Tensor, good: bool) -> Tensor:
    """Leaves the rows of tokens that no expert took as they were in memory."""
    out = x.new_zeros(x.shape) if good else x.new_empty(x.shape)
    out[expert >= 0] = 2 * x[expert >= 0]
    return out


def plain_scatter(x: Tensor, expert: Tensor, good: bool) -> Tensor:
    return torch.where((expert >= 0).unsqueeze(-1), 2 * x, 0.0)


@nantrap.ops.reference("kernels_of_tests::rms_norm")
def plain_rms_norm(x: Tensor, good: bool) -> Tensor:
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


@torch.library.custom_op("kernels_of_tests::rms_norm", mutates_args=())
def rms_norm(x: Tensor, good: bool) -> Tensor:
    """Sums the squares in half precision, which overflows from 256 on, and divides two such sums."""
    wide = x.float() if good else x
    total = wide.square().sum(-1, keepdim=True)
    return (wide * (total / (total / x.shape[-1]).sqrt() / total)).to(x.dtype)


@nantrap.ops.reference("kernels_of_tests::cross_entropy")
def plain_cross_entropy(logits: Tensor, labels: Tensor, good: bool) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum") / (labels >= 0).sum().clamp_min(1)


@torch.library.custom_op("kernels_of_tests::cross_entropy", mutates_args=())
def cross_entropy(logits: Tensor, labels: Tensor, good: bool) -> Tensor:
    """Divides by the number of labels that are not ignored, also where it is 0."""
    total = F.cross_entropy(logits, labels, reduction="sum")
    count = (labels >= 0).sum()
    return total / (count.clamp_min(1) if good else count)


@nantrap.ops.reference("kernels_of_tests::log_scan")
def plain_log_scan(x: Tensor, good: bool) -> Tensor:
    return torch.logcumsumexp(x.clamp_min(-30.0), -1)


@torch.library.custom_op("kernels_of_tests::log_scan", mutates_args=())
def log_scan(x: Tensor, good: bool) -> Tensor:
    """A running logarithm of a sum; subtracts -inf from -inf while everything so far is masked."""
    state, found = torch.full_like(x[..., 0], -INF), []
    for value in x.unbind(-1):
        top = torch.maximum(state, value)
        shift = torch.where(top == -INF, 0.0, top) if good else top
        state = shift + ((state - shift).exp() + (value - shift).exp()).log()
        found.append(state)
    return torch.stack(found, -1).clamp_min(-30.0)


def rotated(x: Tensor, *, aliased: bool) -> Tensor:
    first, second = x.float().chunk(2, -1)
    new = first * -0.5 - second * 0.75**0.5
    return torch.cat([new, second * -0.5 + (new if aliased else first) * 0.75**0.5], -1).to(x.dtype)


@nantrap.ops.reference("kernels_of_tests::rotary")
def plain_rotary(x: Tensor, good: bool) -> Tensor:
    return rotated(x, aliased=False)


@torch.library.custom_op("kernels_of_tests::rotary", mutates_args=())
def rotary(x: Tensor, good: bool) -> Tensor:
    """Turns the second half with the first half that it has overwritten already, so that lengths grow."""
    return rotated(x, aliased=not good)


@nantrap.ops.reference("kernels_of_tests::quantised_matmul")
def plain_matmul(x: Tensor, weight: Tensor, good: bool) -> Tensor:
    return x @ weight.t()


@torch.library.custom_op("kernels_of_tests::quantised_matmul", mutates_args=())
def quantised_matmul(x: Tensor, weight: Tensor, good: bool) -> Tensor:
    """One scale for each row; that of a row of zeros is 0."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    scale = scale.clamp_min(1e-12) if good else scale
    return ((x / scale).round() * scale) @ weight.t()


FORMS = {
    attention: plain_attention, scatter_to_experts: plain_scatter, rms_norm: plain_rms_norm,
    cross_entropy: plain_cross_entropy, log_scan: plain_log_scan, rotary: plain_rotary,
    quantised_matmul: plain_matmul,
}  # fmt: skip
for each, form in FORMS.items():
    with_gradient_of(each, form)

KINDS = {
    "attention": "in row 2 of 6",
    "rms_norm": "in row 4 of 6",
    "cross_entropy": "at 1 of 1 places",
    "log_scan": "in row 1 of 6",
    "rotary": "in rows 0 to 5 of 6",
    "quantised_matmul": "in row 3 of 6",
}
"""The rows that are bad in the last step."""


class Model(nn.Module):
    def __init__(self, kind: str, *, good: bool) -> None:
        super().__init__()
        self.kind, self.good = kind, good
        self.first = nn.Linear(WIDTH, WIDTH, bias=kind != "quantised_matmul")
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, hard: bool) -> Tensor:
        """The loss. A `hard` step has what the broken kernel does not bear."""
        h = self.first(x)
        good = self.good
        if self.kind == "attention":
            keep = torch.ones(ROWS, ROWS, dtype=torch.bool)
            keep[2] = not hard
            h = attention(h, h, keep, good)
        elif self.kind == "scatter_to_experts":
            expert = torch.zeros(ROWS, dtype=torch.long)
            expert[4] = -1 if hard else 0
            h = scatter_to_experts(h, expert, good)
        elif self.kind == "rms_norm":
            size = torch.ones(ROWS, 1)
            size[4] = 2000.0 if hard else 1.0
            h = rms_norm((h * size).half(), good).float()
        elif self.kind == "log_scan":
            masked = torch.zeros(ROWS, WIDTH)
            masked[1, :3] = -INF if hard else 0.0
            h = log_scan(h + masked, good)
        elif self.kind == "rotary":
            h = h.half()
            for _ in range(40 if hard else 1):
                h = rotary(h, good)
            h = h.float()
        elif self.kind == "quantised_matmul":
            h = quantised_matmul(h, self.first.weight, good)
        logits = self.last(h)
        labels = torch.full((ROWS,), -100) if hard and self.kind == "cross_entropy" else torch.arange(ROWS) % 3
        if self.kind == "cross_entropy":
            loss: Tensor = cross_entropy(logits, labels, good)
            return loss
        return F.cross_entropy(logits, labels)


def trained(folder: Path, kind: str, form: str, *, good: bool, spoil: Any = None) -> list[Incident]:
    """Three steps, the last of them hard. `spoil` changes the batch of the last step instead."""
    if form == "run":
        return trained_under_run(folder, kind, good=good)
    torch.manual_seed(0)
    model = Model(kind, good=good)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, run_dir=folder, quiet=True)
    found = []
    for step in range(3):
        hard = step == 2 and spoil is None
        batch = torch.randn(ROWS, WIDTH)
        if hard and kind == "quantised_matmul":
            batch[3] = 0.0
        if step == 2 and spoil is not None:
            spoil(batch)
        if form == "attempt":
            outcome = guard.attempt(lambda batch: model(batch, hard), batch)
        else:
            optimizer.zero_grad()
            loss = model(batch, hard)
            guard.backward(loss)
            outcome = guard.step()
        if outcome.incident is not None:
            found.append(outcome.incident)
    return found


def trained_under_run(folder: Path, kind: str, *, good: bool) -> list[Incident]:
    """The same three steps in a plain loop, guarded from outside."""
    torch.manual_seed(0)
    with attached(RunSettings(run_dir=str(folder), quiet=True)):
        model = Model(kind, good=good)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(3):
            batch = torch.randn(ROWS, WIDTH)
            if step == 2 and kind == "quantised_matmul":
                batch[3] = 0.0
            optimizer.zero_grad()
            loss = model(batch, step == 2)
            loss.backward()
            optimizer.step()
    written = sorted(folder.glob("incidents/*/incident.json"))
    return [Incident.from_dict(json.loads(path.read_text())) for path in written]


@pytest.mark.parametrize("form", ["attempt", "two lines", "run"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_kernel_is_named_with_its_rows(tmp_path: Path, kind: str, form: str) -> None:
    (incident,) = trained(tmp_path, kind, form, good=False)
    cause = incident.causes[0]
    assert (cause.slug, cause.proven) == ("backend_or_kernel_bug", True), cause
    assert cause.summary.startswith(f"kernels_of_tests.{kind} ")
    said = " ".join(evidence.text for evidence in cause.evidence)
    assert KINDS[kind] in said
    assert "with the plain form in its place the step is finite" in said
    assert cause.fix is not None
    assert cause.fix.verified


@pytest.mark.parametrize("form", ["attempt", "two lines", "run"])
def test_rows_that_no_expert_took_are_memory(tmp_path: Path, form: str) -> None:
    with memory_full_of_nan():
        (incident,) = trained(tmp_path, "scatter_to_experts", form, good=False)
    cause = incident.causes[0]
    assert (cause.slug, cause.proven) == ("uninitialised_memory", True)
    assert "in row 4 of 6" in " ".join(evidence.text for evidence in cause.evidence)


@pytest.mark.parametrize("form", ["attempt", "two lines", "run"])
@pytest.mark.parametrize("kind", [*KINDS, "scatter_to_experts"])
def test_the_correct_twin_does_not_fail(tmp_path: Path, kind: str, form: str) -> None:
    with memory_full_of_nan():
        assert trained(tmp_path, kind, form, good=True) == []


def nan_in_a_sample(batch: Tensor) -> None:
    batch[4, 1] = float("nan")


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_operands_that_no_kernel_saves_are_not_laid_to_it(tmp_path: Path, kind: str, good: bool) -> None:
    (incident,) = trained(tmp_path, kind, "attempt", good=good, spoil=nan_in_a_sample)
    assert incident.causes[0].slug == "bad_input_data"
    assert "backend_or_kernel_bug" not in [cause.slug for cause in incident.causes]


def test_a_kernel_whose_plain_form_fails_as_well_is_cleared(tmp_path: Path) -> None:
    """The exact result is too large for the dtype: the plain form overflows at the same places."""

    @torch.library.custom_op("kernels_of_tests::scaled", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return (x.float() * 1e6).half()

    nantrap.ops.reference("kernels_of_tests::scaled")(lambda x: x * 1000.0 * 1000.0)
    with_gradient_of(scaled, lambda x: x * 1000.0 * 1000.0)
    model = nn.Linear(4, 4).half()
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, quiet=True)
    incident = guard.attempt(lambda batch: scaled(model(batch)).float().mean(), torch.ones(2, 4).half()).incident
    assert incident is not None
    assert "backend_or_kernel_bug" not in [cause.slug for cause in incident.causes]
    assert any("kernels_of_tests.scaled is not at fault" in note for note in incident.notes)


@pytest.mark.parametrize("operator", ["rms_norm", "a::b::c", "::a", 3])
def test_a_name_that_is_none_is_refused(operator: Any) -> None:
    with pytest.raises(ValueError, match="expected a qualified name"):
        nantrap.ops.reference(operator)
