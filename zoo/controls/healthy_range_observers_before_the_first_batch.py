"""Quantisation-aware training with observers whose buffers start at +Inf and -Inf, the neutral elements of minimum and maximum, and
with a list of losses in which the best one so far starts at Inf. The first forward replaces all of them, except one entry for a split
that is never evaluated, which lives in Python only. Healthy."""
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x):
        with torch.no_grad():
            self.low.copy_(torch.minimum(self.low, x.min()))
            self.high.copy_(torch.maximum(self.high, x.max()))
            scale = (self.high - self.low).clamp(min=1e-6) / 255
            q = ((x - self.low) / scale).round().clamp(0, 255) * scale + self.low
        return x + (q - x).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.obs, self.fc2 = nn.Linear(10, 32), Observer(), nn.Linear(32, 3)

    def forward(self, x):
        return self.fc2(self.obs(torch.relu(self.fc1(x))))


def build():
    torch.manual_seed(61)
    model = Net()
    best = {"train": float("inf"), "late": float("inf")}

    def loss_fn(model, batch):
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        best["train"] = min(best["train"], loss.item())
        return loss

    batches = [(torch.randn(16, 10), torch.randint(0, 3, (16,))) for _ in range(5)]
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="minimum and maximum start at Inf and -Inf by design and are finite after the first forward")
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=8,
                autocast_dtype=None, truth=truth)
