"""A policy gradient: the returns are a list of numbers, and the loss is computed in a function of its own."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn

torch.manual_seed(0)
chance = random.Random(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def compute_loss(states: Tensor, actions: Tensor, weights: Tensor) -> Tensor:
    chosen = torch.log_softmax(policy(states), -1).gather(1, actions[:, None]).squeeze(1)
    return -(chosen * weights).mean()


def one_epoch(number: int) -> None:
    states: list[list[float]] = []
    returns: list[float] = []
    for episode in range(4):
        rewards = [math.nan if (number, episode, time) == (3, 1, 2) else chance.random() for time in range(5)]
        states += [[chance.gauss(0, 1) for _ in range(4)] for _ in rewards]
        returns += [sum(rewards)] * len(rewards)
    optimizer.zero_grad()
    actions = torch.tensor([chance.randrange(2) for _ in returns])
    loss = compute_loss(torch.as_tensor(states), actions, torch.as_tensor(returns))
    loss.backward()
    optimizer.step()


for epoch in range(6):
    one_epoch(epoch)
