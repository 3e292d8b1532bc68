"""Image-text contrastive training (CLIP style) with a learned temperature exp(logit_scale).

What goes wrong: the temperature got its own parameter group with a learning rate of 20, and there is
no clamp; logit_scale shoots past 88 and exp() gives inf.
Follows https://github.com/openai/CLIP/issues/46 (temperature clipping missing).
True cause: the learned temperature has a learning rate of 20 and no clamp, so exp(logit_scale) overflows."""
import math

import torch
import torch.nn.functional as F
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self, d_in=24, d=16):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(d_in, 64), nn.GELU(), nn.Linear(64, d))
        self.text = nn.Sequential(nn.Linear(d_in, 64), nn.GELU(), nn.Linear(64, d))
        self.text.load_state_dict(self.image.state_dict())  # both start from the same pretrained tower
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, img, txt):
        i = F.normalize(self.image(img), dim=-1)
        t = F.normalize(self.text(txt), dim=-1)
        return self.logit_scale.exp() * i @ t.t()


def pairs(n_batches=60, size=16):
    g = torch.Generator().manual_seed(101)
    for _ in range(n_batches):
        z = torch.randn(size, 24, generator=g)
        yield z + 0.2 * torch.randn(size, 24, generator=g), z


def build():
    torch.manual_seed(6)
    model = TwoTowers()
    towers = list(model.image.parameters()) + list(model.text.parameters())
    optimizer = torch.optim.Adam([{"params": towers, "lr": 1e-3},
                                 {"params": [model.logit_scale], "lr": 20.0}], lr=1e-3)
    batches = list(pairs())

    def loss_fn(model, batch):
        logits = model(*batch)
        target = torch.arange(len(logits))
        return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exp_overflow",), first_bad_step=11, phase="forward", module="loss",
                           op="aten.exp", line="self.logit_scale.exp()", repair=('"lr": 20.0', '"lr": 0.01')))
