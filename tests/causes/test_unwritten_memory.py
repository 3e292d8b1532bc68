"""Memory that a step allocates and does not write as a whole: proven by filling it, and never taken for something else.

In these programs fresh memory holds NaN in the failed step, as it may by chance.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nantrap import Guard
from nantrap.incident import Incident

ROWS = 12
WRITTEN = 10


@contextlib.contextmanager
def memory_full_of_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class ReluOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, good: bool) -> Tensor:
        ctx.save_for_backward(x)
        out = torch.empty_like(x)  # in function
        out[:WRITTEN] = x[:WRITTEN].relu()
        if good:
            out[WRITTEN:] = 0
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        result = torch.zeros_like(x)
        result[:WRITTEN] = gradients[0][:WRITTEN] * (x[:WRITTEN] > 0)
        return result, None


class TanhOfRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, good: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.good = good
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        result = x.new_empty(x.shape)  # in backward
        result[:WRITTEN] = gradients[0][:WRITTEN] * (1 - x[:WRITTEN].tanh().square())
        if ctx.good:
            result[WRITTEN:] = 0
        return result, None


@torch.library.custom_op("nantrap_tests::doubled_rows", mutates_args=())
def doubled_rows(x: Tensor, good: bool) -> Tensor:
    out = torch.empty_like(x)
    out[:WRITTEN] = 2 * x[:WRITTEN]
    if good:
        out[WRITTEN:] = 0
    return out


def _double_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    result = torch.zeros_like(gradient)
    result[:WRITTEN] = 2 * gradient[:WRITTEN]
    return result, None


doubled_rows.register_autograd(_double_back)


@torch.library.custom_op("nantrap_tests::sums_of_segments", mutates_args=())
def sums_of_segments(x: Tensor, good: bool) -> Tensor:
    out = torch.empty(4, x.shape[1])
    for segment in range(4 if good else 3):
        out[segment] = x[segment::4].sum(0)
    return out


def _spread_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient.repeat(ROWS // 4, 1), None


sums_of_segments.register_autograd(_spread_back)


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.good = kind, True
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.kind == "function":
            h = ReluOfRows.apply(h, self.good)
        elif self.kind == "backward":
            h = TanhOfRows.apply(h, self.good)
        elif self.kind == "operator":
            h = doubled_rows(h, self.good)
        elif self.kind == "segments":
            h = sums_of_segments(h, self.good)
        elif self.kind == "model":
            padded = torch.empty(ROWS, 8)  # in model
            padded[: ROWS if self.good else WRITTEN] = h[: ROWS if self.good else WRITTEN]
            h = padded
        elif self.kind == "copied":
            places = torch.arange(ROWS if self.good else WRITTEN)
            h = h.new_empty(ROWS, 8).index_copy(0, places, h[places])  # in copied
        elif self.kind == "masked":
            mask = (torch.arange(ROWS) < WRITTEN).unsqueeze(1)
            padded = torch.empty_like(h)  # in masked
            padded[:WRITTEN] = h[:WRITTEN]
            h = torch.where(mask, padded, 0.0) if self.good else padded * mask
        out: Tensor = self.last(h)
        return out


KINDS = ("function", "backward", "operator", "segments", "model", "copied", "masked")
FORMS = ("attempt", "two lines")


def trained(folder: Path, kind: str, form: str, *, good: bool, bad_sample: bool = False) -> list[Incident]:
    """Three steps. The last runs with fresh memory full of NaN, and writes all of it if it is `good`."""
    torch.manual_seed(0)
    model = Net(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = Guard(model, optimizer, run_dir=folder)

    def loss_of(batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    found = []
    for step in range(3):
        batch = torch.randn(ROWS, 8)
        model.good = good or step < 2
        if bad_sample and step == 2:
            batch[4] = float("nan")
        with memory_full_of_nan() if step == 2 else contextlib.nullcontext():
            if form == "attempt":
                outcome = guard.attempt(loss_of, batch)
            else:
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                guard.backward(loss)
                outcome = guard.step()
        if outcome.incident is not None:
            found.append(outcome.incident)
    return found


def line_of(mark: str) -> int:
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(text, start=1) if line.endswith(mark))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_was_not_written_is_proven(tmp_path: Path, kind: str, form: str) -> None:
    (incident,) = trained(tmp_path, kind, form, good=False)
    cause = incident.causes[0]
    assert (cause.slug, cause.proven) == ("uninitialised_memory", True)
    assert incident.source is not None
    said = " ".join(evidence.text for evidence in cause.evidence)
    if kind in ("operator", "segments"):
        name = "doubled_rows" if kind == "operator" else "sums_of_segments"
        assert cause.summary == f"nantrap_tests.{name} leaves a part of its result unwritten"
        rows = f"in rows 10, 11 of {ROWS}" if kind == "operator" else "in row 3 of 4"
        assert f"gives NaN {rows}; every input is finite" in said
    else:
        assert cause.summary.endswith("was read before all of it was written")
        assert incident.source.line == line_of(f"# in {kind}")
    assert "with fresh memory filled with zeros the same step is finite" in said
    assert cause.fix is not None
    assert cause.fix.verified
    assert cause.fix.text == "torch.zeros, zeros_like or new_zeros instead of torch.empty, empty_like or new_empty"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_that_writes_all_of_it_does_not_fail(tmp_path: Path, kind: str, form: str) -> None:
    assert trained(tmp_path, kind, form, good=True) == []


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("kind", ["function", "operator", "model"])
def test_a_bad_sample_is_not_called_memory(tmp_path: Path, kind: str, good: bool) -> None:
    """Next to memory that is not written, the sample alone makes the step fail."""
    (incident,) = trained(tmp_path, kind, "attempt", good=good, bad_sample=True)
    assert incident.causes[0].slug == "bad_input_data"
    assert "uninitialised_memory" not in [cause.slug for cause in incident.causes if cause.proven]


def test_the_settings_of_the_program_stay(tmp_path: Path) -> None:
    allocators = (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided)
    trained(tmp_path, "model", "attempt", good=False)
    assert not torch.are_deterministic_algorithms_enabled()
    settings: Any = torch.utils.deterministic
    assert settings.fill_uninitialized_memory
    now = (torch.empty, torch.empty_like, torch.empty_strided, Tensor.new_empty, Tensor.new_empty_strided)
    assert all(a is b for a, b in zip(allocators, now, strict=True))
