"""Gradient descent by hand with far too high a learning rate; the script leaves the epoch at the first Inf."""

import math

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
X = 10 * torch.randn(200, 3)
y = X @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3
w = torch.zeros(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
lr = 3.0
step = 0
for epoch in range(3):
    last = float("nan")
    for i in range(0, 200, 20):
        loss = ((X[i : i + 20] @ w + b - y[i : i + 20]) ** 2).mean()
        last = loss.item()
        if math.isnan(last) or math.isinf(last):
            print(f"  step {step}: loss {last}, leaving the epoch")
            break
        loss.backward()
        with torch.no_grad():
            w -= lr * w.grad
            b -= lr * b.grad
        w.grad = None
        b.grad = None
        step += 1
    print(f"epoch {epoch} loss {last:.4g}")
