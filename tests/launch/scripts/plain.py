"""Tensors without a module, and a helper that looks at the loss and exits: the first argument says who updates."""

import sys

import torch


def check(loss):
    if torch.isnan(loss).any() or torch.isinf(loss).any():
        sys.exit(0)


x = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 1.0], [4.0, 3.0]])
y = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
W = torch.zeros(2, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
before = torch.log(torch.sigmoid(x.matmul(W) + b))  # the same operation once before the loop
optimizer = torch.optim.SGD([W, b], lr=1.0) if sys.argv[1] == "optimizer" else None
for step in range(50):
    hypothesis = torch.sigmoid(x.matmul(W) + b + 4.0 * step * (1 - 2 * y))
    cost = -(y * torch.log(hypothesis) + (1 - y) * torch.log(1 - hypothesis)).mean()
    check(cost)
    if sys.argv[1] == "looks":
        continue
    if optimizer is not None:
        optimizer.zero_grad()
    cost.backward()
    if optimizer is not None:
        optimizer.step()
    else:
        with torch.no_grad():
            W -= W.grad
            b -= b.grad
            W.grad = b.grad = None
