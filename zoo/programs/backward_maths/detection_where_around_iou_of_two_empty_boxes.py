"""One-stage detector head trained with 1 - IoU on the matched boxes.

What goes wrong: an annotation has zero width and the predicted box has zero width, too; the union is
zero. The person chose IoU = 0 there with torch.where, so the loss is fine, but the derivative of the
division that was not chosen is 0 * inf = NaN.
Follows https://github.com/Zzh-tju/DIoU-pytorch-detectron/issues/19 (the mask does not keep autograd
from going through the empty boxes).
True cause: both boxes are empty, so the division 0/0 in the branch that torch.where does not choose sends NaN
back into the gradients."""

import torch
from torch import nn


class BoxHead(nn.Module):
    """distances left, top, right, bottom from the anchor point"""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU())
        self.ltrb = nn.Linear(32, 4, bias=False)

    def forward(self, feat):
        return self.ltrb(self.tower(feat)).abs()


def iou_loss(pred, target):
    area_p = (pred[:, 0] + pred[:, 2]) * (pred[:, 1] + pred[:, 3])
    area_t = (target[:, 0] + target[:, 2]) * (target[:, 1] + target[:, 3])
    low = torch.minimum(pred, target)
    inter = (low[:, 0] + low[:, 2]) * (low[:, 1] + low[:, 3])
    union = area_p + area_t - inter
    iou = torch.where(union > 0, inter / union, torch.zeros_like(union))
    return (1 - iou).mean()


def annotations():
    g = torch.Generator().manual_seed(33)
    for i in range(14):
        feat = torch.randn(12, 16, generator=g)
        box = torch.rand(12, 4, generator=g) * 2 + 0.2
        if i == 10:
            box[3, 0] = box[3, 2] = 0.0  # x_min == x_max in the annotation file
            feat[3] = 0.0
        yield feat, box


def build():
    torch.manual_seed(0)
    model = BoxHead()
    nn.init.uniform_(model.ltrb.weight, 0.0, 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def loss_fn(model, batch):
        feat, box = batch
        return iou_loss(model(feat), box)

    return dict(model=model, optimizer=optimizer, batches=list(annotations()), loss_fn=loss_fn, steps=14,
                autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=("division_by_zero", "zero_times_inf"), first_bad_step=10,
                           phase="backward", module="loss", op="aten.div", also_op=("aten.mul", "aten.neg", "aten.where"),
                           line="torch.where(union > 0, inter / union", sample=3,
                           repair=("inter / union, torch", "inter / union.clamp(min=1e-9), torch")))
