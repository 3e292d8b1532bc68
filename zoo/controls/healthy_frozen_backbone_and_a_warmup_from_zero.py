"""Fine-tuning in two stages. The backbone is frozen and gets no gradients; the head's warm-up starts at a rate of exactly zero, so the
first update changes nothing, and the adapter's last layer starts at zero, so its first layer has gradients of exactly zero at steps 0
and 1. It looks dead for two steps and then it learns. Healthy."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 32), nn.GELU()).requires_grad_(False)
        self.down, self.up = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
        self.head = nn.Linear(32, 3)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        h = self.backbone(x)
        return self.head(h + self.up(self.down(h)))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def feed(data, scheduler):
    for batch in data:
        yield batch
        scheduler.step()


def build():
    torch.manual_seed(64)
    model = Net()
    data = []
    for _ in range(14):
        x = torch.randn(32, 12)
        data.append((x, x[:, :3].argmax(1)))
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 5))
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="zero rate, zero gradients and frozen weights are intended; from step 2 on everything that should move moves",
                 **{"not": ["dead_training"]})
    return dict(model=model, optimizer=opt, batches=feed(data, scheduler), loss_fn=loss_fn, steps=14, autocast_dtype=None, truth=truth)
