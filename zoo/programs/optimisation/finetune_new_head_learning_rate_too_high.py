"""Fine-tuning: a pretrained encoder gets a new regression head with its own learning rate.

What goes wrong: the head's learning rate is the backbone's times 1000 (somebody wanted 10); the
encoder's features are large, the head diverges and its gradients wreck the backbone.
True cause: the new head's learning rate (0.1) is far too high; the head diverges and drags the backbone
along."""

import torch
from torch import nn

BACKBONE_LR = 1e-4


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())

    def forward(self, x):
        return self.layers(x)


class FineTuned(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.new_head = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, x):
        return self.new_head(self.backbone(x)).squeeze(-1)


def pretrained_encoder():
    torch.manual_seed(77)
    enc = Encoder()
    for p in enc.parameters():  # stands for torch.load("encoder.pt")
        p.data.mul_(1.7)
    return enc


def build():
    model = FineTuned(pretrained_encoder())
    optimizer = torch.optim.SGD([
        {"params": model.backbone.parameters(), "lr": BACKBONE_LR},
        {"params": model.new_head.parameters(), "lr": BACKBONE_LR * 1e3},
    ], lr=BACKBONE_LR, momentum=0.9)
    g = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(12):
        x = torch.randn(24, 16, generator=g)
        batches.append((x, x.norm(dim=1)))

    def loss_fn(model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=48, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=36, phase="forward", module="new_head.1",
                           op="aten.addmm", line="return self.new_head(self.backbone(x)).squeeze(-1)",
                           repair=("BACKBONE_LR * 1e3", "BACKBONE_LR * 10")))
