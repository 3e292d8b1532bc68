"""Per-sample gradients: hooks collect activations in lists of their modules, and gradients on the parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 6)
y = (x.sum(1) > 0).long()
x[17, 2] = torch.nan


def collect(module: Any, inputs: Any, output: Any) -> None:
    module.__dict__.setdefault("activations", []).append(inputs[0].detach())


def per_sample(module: Any, inputs: Any, outputs: Any) -> None:
    given, taken = outputs[0], module.activations.pop()
    module.weight.per_sample = torch.einsum("no,ni->noi", given, taken)
    if not module.activations:
        del module.activations


model = nn.Linear(6, 2, bias=False)
model.register_forward_hook(collect)
model.register_full_backward_hook(per_sample)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for features, labels in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(features), labels).backward()
    weight: Any = model.weight
    if "activations" in vars(model) or len(weight.per_sample) != len(features):
        raise RuntimeError("activations of another pass are left")
    weight.grad = weight.per_sample.sum(0)
    del weight.per_sample
    optimizer.step()
    if "activations" in vars(model) or "per_sample" in vars(weight):
        raise RuntimeError("a replay has left what its hooks collected")
