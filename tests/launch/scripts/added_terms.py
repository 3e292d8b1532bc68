"""A loss that is the sum of three terms, in the way that the argument says. One term overflows in step 3."""

from __future__ import annotations

import os

import torch
from torch import nn

WAY = os.environ["ADDED_TERMS"]
weight = 0.25


def total(losses):
    return losses["error"] + weight * losses["spread"]


def product(losses):
    return losses["error"] * losses["spread"]


torch.manual_seed(0)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(5):
    x = torch.randn(8, 6)
    optimizer.zero_grad()
    mean, log_variance = model(x).chunk(2, -1)
    if step == 3:
        log_variance = log_variance * 2000
    error = ((mean - x[:, :2]) ** 2).mean()
    spread = (log_variance.exp() - 1 - log_variance).mean()
    size = model.weight.abs().sum()
    if WAY == "sum":
        loss = error + weight * spread - 1e-5 * size
    elif WAY == "again":
        loss = error
        loss = loss + weight * spread
        loss += 1e-5 * size
    elif WAY == "dict":
        losses = {"error": error, "spread": spread}
        loss = sum(losses.values())
    elif WAY == "function":
        losses = {"error": error, "spread": spread}
        loss = total(losses) / 2
    elif WAY == "window":  # the variables are those of the last micro-batch
        for losses in ({"error": error, "spread": size}, {"error": error, "spread": spread}):
            loss = total(losses) / 2
            loss.backward(retain_graph=True)
    elif WAY == "other_function":
        losses = {"error": error, "spread": spread}
        loss = product(losses)
    elif WAY == "in_place":  # the first term is the sum afterwards
        loss = error
        loss += spread
    else:
        loss = (error * spread).sqrt()
    if WAY != "window":
        loss.backward()
    optimizer.step()
