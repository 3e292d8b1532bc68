"""The storm: a BatchNorm CNN, AdamW, 300 steps, faults of seven kinds in a fifth of them. The run ends as if in calm.

Every usual remedy (checking the loss, zeroing gradients, a GradScaler, checking the norm) ends with NaN in weights,
moments or running statistics here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.loops import INF, NAN
from nantrap import Diagnosis, Policy, Skips

STEPS = 300
FAULTS = ("batch", "activation", "loss", "gradient_nan", "gradient_inf", "gradient_huge", "exp")


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.head = nn.Linear(32, 4)
        self.fault = ""

    def forward(self, x: Tensor) -> Tensor:
        features = self.body[:4](x)
        if self.fault == "activation":
            features = features.clone()
            features[0, 0, 0, 0] = NAN
        if self.fault == "exp":
            features = features + (features[:1] * 1e4).exp() * 1e-30
        output = self.head(self.body[4:](features).flatten(1))
        value = {"gradient_nan": NAN, "gradient_inf": INF, "gradient_huge": 1e25}.get(self.fault)
        if value is not None and output.requires_grad:
            output.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([0]), value))
        return output


def data(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Four classes: which quarter of the picture is bright."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        y = torch.randint(4, (16,), generator=generator)
        x = 0.5 * torch.randn(16, 1, 8, 8, generator=generator)
        for i, quarter in enumerate(y.tolist()):
            top, left = 4 * (quarter // 2), 4 * (quarter % 2)
            x[i, 0, top : top + 4, left : left + 4] += 1.0
        made.append((x, y))
    return made


def loss_of(model: Cnn, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return loss * NAN if model.fault == "loss" else loss


def weather(stormy: bool) -> list[str]:
    """A fault in a fifth of the steps, in seven kinds, at steps drawn once."""
    days = [""] * STEPS
    if stormy:
        drawn = torch.randperm(STEPS, generator=torch.Generator().manual_seed(11))[: STEPS // 5].tolist()
        for index, step in enumerate(drawn):
            days[step] = FAULTS[index % len(FAULTS)]
    return days


def train(
    step: Callable[[Cnn, torch.optim.Optimizer], Callable[[Any], Any]], *, stormy: bool
) -> tuple[Cnn, Any, float]:
    torch.manual_seed(1)
    model = Cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    advance = step(model, optimizer)
    for fault, (x, y) in zip(weather(stormy), data(STEPS, 2), strict=True):
        model.fault = fault
        if fault == "batch":
            x = x.clone()
            x[3, 0, 0, 0] = INF
        advance((x, y))
    model.fault = ""
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, batch) for batch in data(20, 3)]
    return model, optimizer, float(torch.stack(losses).mean())


def plain(model: Cnn, optimizer: torch.optim.Optimizer) -> Callable[[Any], Any]:
    def advance(batch: Any) -> None:
        loss = loss_of(model, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(loss) and torch.isfinite(norm):  # the best of the usual remedies
            optimizer.step()
        optimizer.zero_grad()

    return advance


def guarded(form: str) -> Callable[[Cnn, torch.optim.Optimizer], Callable[[Any], Any]]:
    def start(model: Cnn, optimizer: torch.optim.Optimizer) -> Callable[[Any], Any]:
        policy = Policy(skips=Skips(in_window=None), diagnosis=Diagnosis(seconds=1.0, repeats=1))
        guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0, policy=policy, quiet=True)

        def attempt(batch: Any) -> Any:
            outcome = guard.attempt(lambda b: loss_of(model, b), batch)
            assert (outcome.incident is not None) == bool(model.fault), model.fault

        def two_line(batch: Any) -> Any:
            guard.backward(loss_of(model, batch))
            outcome = guard.step()
            assert (outcome.incident is not None) == bool(model.fault), model.fault

        return attempt if form == "attempt" else two_line

    return start


def everything(model: Cnn, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    moments = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    return [*model.parameters(), *model.buffers(), *moments]


@pytest.fixture(scope="module")
def calm() -> float:
    return train(plain, stormy=False)[2]


@pytest.mark.parametrize("form", ["two_line", "attempt"])
def test_everything_is_finite_at_the_end_and_as_good_as_in_calm(form: str, calm: float) -> None:
    assert sum(map(bool, weather(stormy=True))) == 60
    model, optimizer, loss = train(guarded(form), stormy=True)
    assert all(torch.isfinite(t.float()).all() for t in everything(model, optimizer))
    assert calm < 0.05  # chance is 1.39
    assert loss < calm + 0.02


def test_the_best_of_the_usual_remedies_does_not_survive_it() -> None:
    model, _, loss = train(plain, stormy=True)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not all(torch.isfinite(b.float()).all() for b in model.buffers())
    assert not loss < 10
