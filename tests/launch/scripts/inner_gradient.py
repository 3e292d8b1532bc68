"""A loss of weights after an inner step, whose gradient is that of a square root at exactly 0 from step 2 on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def endless() -> Iterator[Tensor]:
    while True:
        yield torch.randn(8, 4)


class Tasks:
    """Gives each task once, so that the step cannot be run again."""

    def __init__(self) -> None:
        self.source = endless()

    def sample(self) -> Tensor:
        return next(self.source)


torch.manual_seed(0)
tasks = Tasks()
weight = torch.randn(4, 1, requires_grad=True)
optimizer = torch.optim.Adam([weight], lr=1e-3)
for step in range(4):
    x = tasks.sample()
    inner = ((x @ weight) ** 2).mean()
    if step >= 2:
        inner = inner + torch.sqrt(((weight - weight) ** 2).sum())
    (slope,) = torch.autograd.grad(inner, weight, create_graph=True)
    loss = ((tasks.sample() @ (weight - 0.01 * slope)) ** 2).mean() / 4
    if torch.isnan(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
