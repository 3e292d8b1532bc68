"""Compiled against eager: a difference by construction is named with its part of the model, a healthy model is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nantrap.doctor.preflight.compiled import check_compiled
from nantrap.doctor.preflight.subject import make_subject


class Scaled(nn.Module):
    """Computes something else when it is compiled, as a part with a fault of the compiler does."""

    def __init__(self, *, gradient_alone: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.gradient_alone = gradient_alone

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if torch.compiler.is_compiling():
            out = out.detach() * 2 - out if self.gradient_alone else out * 1.5
        return out.tanh()


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        part = nn.Linear(8, 8) if kind == "healthy" else Scaled(gradient_alone=kind == "gradient")
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2)), part])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def parts(kind: str) -> dict[str, Any]:
    torch.manual_seed(1)
    batch = (torch.randn(16, 8), torch.randint(0, 3, (16,)))
    return {"model": Net(kind), "batch": batch, "loss": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])}


def test_a_healthy_model_is_as_eager() -> None:
    check = check_compiled(make_subject(parts("healthy"), {}), "eager")
    assert check.status == "ok"
    assert check.message.startswith("loss and 6 gradients as eager; the largest difference is ")


@pytest.mark.parametrize("kind", ["value", "gradient"])
def test_a_difference_is_narrowed_to_a_part(kind: str) -> None:
    check = check_compiled(make_subject(parts(kind), {}), "eager")
    assert check.status == "fail"
    assert check.values["module"] == "blocks.1"
    assert "narrowed to blocks.1 (Scaled), of which no part differs alone" in check.message
    assert (check.values["loss"] == check.values["compiled_loss"]) == (kind == "gradient")


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.words(x)))
        return out


def test_sparse_gradients_are_compared() -> None:
    torch.manual_seed(1)
    batch = (torch.randint(0, 10, (6,)), torch.randint(0, 3, (6,)))
    given = {"model": Words(), "batch": batch, "loss": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])}
    check = check_compiled(make_subject(given, {}), "eager")
    assert check.status == "ok"
    assert check.message.startswith("loss and 3 gradients as eager")


def test_a_loss_that_does_not_call_the_model_compiles_nothing() -> None:
    subject = make_subject({**parts("healthy"), "loss": lambda model, batch: model.head.weight.square().sum()}, {})
    assert check_compiled(subject, "eager").status == "skip"


def test_a_compiler_that_fails_is_reported() -> None:
    def fails(graph: Any, inputs: Any) -> Any:
        raise ValueError("no kernel")

    check = check_compiled(make_subject(parts("healthy"), {}), fails)
    assert check.status == "warn"
    assert check.message.startswith("not compared: torch.compile raised ")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "status"), [("healthy", "ok"), ("value", "fail")])
def test_the_code_generator(kind: str, status: str) -> None:
    assert check_compiled(make_subject(parts(kind), {}), "inductor").status == status
