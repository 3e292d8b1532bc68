"""Fine-tuning with two parameter groups. The backbone has a rate of 1e-4; the head's rate comes from a config in which somebody wrote
percent: 1.0 for 0.01. The head is a product of two layers with a squared loss, so its first update is thrown far beyond the minimum and
each next one further. The backbone's weights barely move until the head's gradients reach them. The true cause is the head's rate."""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 1))

    def forward(self, x):
        return self.head(self.backbone(x)).squeeze(-1)


def loss_fn(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def build():
    torch.manual_seed(30)
    model = Model()
    batches = [(torch.randn(32, 16), torch.randn(32) * 2) for _ in range(4)]
    opt = torch.optim.SGD([
        dict(params=model.backbone.parameters(), lr=1e-4),
        dict(params=model.head.parameters(), lr=1.0),
    ])
    truth = dict(
        cause="lr_too_high", first_bad_step=4, phase="forward", module="backbone.3", op="aten.addmm",
        also_op=["aten.mm", "aten.mse_loss"], also_module=["head.0", "head.1", "backbone.4", "loss"],
        line="dict(params=model.head.parameters(), lr=1.0)",
        why="only the head's group is beyond the stable rate: its weights grow by orders of magnitude per step, the backbone's do not",
        repair=("lr=1.0", "lr=0.01"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None, truth=truth)
