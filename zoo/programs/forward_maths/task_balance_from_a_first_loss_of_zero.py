"""Multi-task learning with a balancer that weights each task by its loss relative to the first one it saw, as GradNorm and DWA do. The
first batch has no boxes: the box loss is a sum over nothing, zero, and zero is remembered as its first loss. The box task comes back at
step 2, and its relative loss is x / 0. The true cause is the division by the remembered zero."""
import torch
from torch import nn


class RelativeBalancer:
    def __init__(self):
        self.first = {}

    def __call__(self, losses):
        rates = {}
        for name, value in losses.items():
            self.first.setdefault(name, value.detach())
            rates[name] = (value.detach() / self.first[name]) if value > 0 else value.new_ones(())
        mean = sum(rates.values()) / len(rates)
        return sum((rates[n] / mean) ** 0.5 * v for n, v in losses.items())


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.cls, self.box = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h), self.box(h)


def build():
    torch.manual_seed(45)
    model = MultiTask()
    balancer = RelativeBalancer()

    def loss_fn(model, batch):
        logits, boxes = model(batch["x"])
        positive = batch["positive"]
        box = (boxes[positive] - batch["boxes"][positive]).abs().sum() / positive.sum().clamp(min=1)
        return balancer({"cls": nn.functional.cross_entropy(logits, batch["y"]), "box": box})

    batches = []
    for k in range(5):
        batches.append(dict(x=torch.randn(16, 12), y=torch.randint(0, 4, (16,)), boxes=torch.rand(16, 4),
                            positive=torch.arange(16) < (5 if k >= 2 else 0)))
    truth = dict(
        cause="division_by_zero", first_bad_step=2, phase="forward", module="loss", op="aten.div",
        line="rates[name] = (value.detach() / self.first[name])",
        why="the first box loss, remembered at step 0 from a batch without boxes, is exactly zero",
        repair=("/ self.first[name])", "/ self.first[name].clamp(min=1e-3))"),
    )
    return dict(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.05), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
