"""An anchor-free detection head (distances to the four sides, through ReLU) with a GIoU loss. Batch 3 holds a location on a blank
patch: its features are zero, the head has no bias, so the predicted box has no area. The annotation there is a click, a box without
area too. Their union is zero: 0 / 0. The rate of 5 looks absurd but is right for this loss, which is divided by the number of pixels.
The true cause is the division by an area of zero."""
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(10, 32, bias=False)
        self.ltrb = nn.Linear(32, 4, bias=False)

    def forward(self, feat):
        return torch.relu(self.ltrb(torch.relu(self.stem(feat))))


def to_box(centre, ltrb):
    return torch.cat([centre - ltrb[:, :2], centre + ltrb[:, 2:]], 1)


def giou_loss(a, b):
    lt, rb = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    union = area_a + area_b - inter
    iou = inter / union
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
    return 1 - iou + (hull - union) / (hull + 1e-7)


def loss_fn(model, batch):
    boxes = to_box(batch["centre"], model(batch["feat"]))
    return giou_loss(boxes, to_box(batch["centre"], batch["target"])).sum() / 4096


def build():
    torch.manual_seed(5)
    model = Head()
    batches = []
    for _ in range(6):
        batches.append(dict(feat=torch.randn(20, 10), centre=torch.rand(20, 2) * 32, target=torch.rand(20, 4) + 0.5))
    batches[3]["feat"][11] = 0.0
    batches[3]["target"][11] = 0.0
    truth = dict(
        cause="division_by_zero", first_bad_step=3, phase="forward", module="loss", op="aten.div", line="iou = inter / union", sample=11,
        why="predicted and annotated box of sample 11 are the same point: intersection and union are zero; the rate is innocent",
        repair=("inter / union", "inter / union.clamp(min=1e-7)"), **{"not": ["lr_too_high"]},
    )
    return dict(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=5.0), batches=batches, loss_fn=loss_fn, steps=6,
                autocast_dtype=None, truth=truth)
