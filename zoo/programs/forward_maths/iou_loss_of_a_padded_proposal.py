"""An IoU loss without an epsilon: a padded target box and the rounded prediction of it are both empty, the union is 0.
After https://github.com/pytorch/vision/issues/7746 (boxes of zero length and width).
True cause: division by zero."""
import torch
from torch import nn


def area(b):
    return (b[:, 2] - b[:, 0]).clamp(min=0) * (b[:, 3] - b[:, 1]).clamp(min=0)


def iou_loss(pred, gt):
    lt, rb = torch.maximum(pred[:, :2], gt[:, :2]), torch.minimum(pred[:, 2:], gt[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    union = area(pred) + area(gt) - inter
    return (1 - inter / union).mean()


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = nn.Linear(4, 2)

    def forward(self, feats, valid):
        wh = self.size(feats).abs() * valid[:, None]           # padded proposals have no size
        return torch.cat([-wh / 2, wh / 2], 1)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"head": Head()})
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = []
    for k in range(4):
        half = torch.rand(5, 2, generator=g) + 0.2
        gt, valid = torch.cat([-half, half], 1), torch.ones(5)
        if k == 1:
            gt[4], valid[4] = 0.0, 0.0
        batches.append((torch.randn(5, 4, generator=g), gt, valid))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: iou_loss(m["head"](b[0], b[2]), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=1, line="(1 - inter / union)", sample=4))
