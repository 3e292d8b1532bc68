"""A loss with a running scale, and a last batch of one sample, whose deviation is 0/0; the script leaves the epoch."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class ScaledL1(nn.Module):
    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("scale", torch.ones(()))

    def forward(self, pred, target):
        r = pred - target
        if self.training:
            self.scale.lerp_(r.detach().std(), self.momentum)
        return (r.abs() / self.scale).mean()


X = torch.randn(65, 5)
Y = X[:, :1] - X[:, 1:2] ** 2
loader = DataLoader(TensorDataset(X, Y), batch_size=16)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
criterion = ScaledL1()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
best = float("inf")
step = 0
for epoch in range(3):
    running = 0.0
    for xb, yb in loader:
        loss = criterion(model(xb), yb)
        running += loss.item()
        step += 1
        if torch.isnan(loss):
            print(f"  step {step - 1}: nan, leaving epoch")
            break
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        val = nn.functional.mse_loss(model(X), Y).item()
    if val < best:
        best, saved = val, {k: v.clone() for k, v in model.state_dict().items()}
    print(f"epoch {epoch} loss {running:.4f} val {val:.4f}")
