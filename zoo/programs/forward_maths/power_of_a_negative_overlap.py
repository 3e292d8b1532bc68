"""A box loss raises the complete IoU to a power below one, as alpha-IoU does with the plain one. The complete IoU subtracts penalties and is negative for boxes that
are far apart.
After https://github.com/ultralytics/yolov3/issues/901 (giou, diou and ciou can be negative; used as if they were an IoU they produce NaN).
True cause: a fractional power of a negative number."""
import math

import torch
from torch import nn


def complete_iou(p, t, eps=1e-7):
    lt, rb = torch.max(p[:, :2], t[:, :2]), torch.min(p[:, 2:], t[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(-1)
    wh_p, wh_t = p[:, 2:] - p[:, :2], t[:, 2:] - t[:, :2]
    iou = inter / (wh_p.prod(-1) + wh_t.prod(-1) - inter + eps)
    hull = torch.max(p[:, 2:], t[:, 2:]) - torch.min(p[:, :2], t[:, :2])
    rho = ((p[:, 2:] + p[:, :2] - t[:, 2:] - t[:, :2]) / 2).square().sum(-1)
    v = 4 / math.pi ** 2 * (torch.atan(wh_t[:, 0] / (wh_t[:, 1] + eps)) - torch.atan(wh_p[:, 0] / (wh_p[:, 1] + eps))).square()
    with torch.no_grad():
        a = v / (1 - iou + v + eps)
    return iou - rho / (hull.square().sum(-1) + eps) - a * v


class BoxHead(nn.Module):
    def __init__(self, d=10):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(d, 16), nn.SiLU())
        self.ltrb = nn.Linear(16, 4)

    def forward(self, feats, points):
        lt, rb = nn.functional.softplus(self.ltrb(self.fc(feats)) + 1.5).chunk(2, -1)
        return torch.cat([points - lt, points + rb], -1)


def alpha_ciou_loss(pred, target, alpha=0.5):
    overlap = complete_iou(pred, target)
    return (1 - overlap ** alpha).mean()


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"head": BoxHead()})
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    g = torch.Generator().manual_seed(3)
    batches = []
    for i in range(5):
        points = torch.rand(5, 2, generator=g) * 40
        targets = torch.cat([points - 1.2 - torch.rand(5, 2, generator=g), points + 1.2 + torch.rand(5, 2, generator=g)], -1)
        if i == 3:
            targets[2] += 15.0                              # the assigner took a centre of a neighbouring level
        batches.append((torch.randn(5, 10, generator=g), points, targets))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: alpha_ciou_loss(m["head"](b[0], b[1]), b[2]), steps=5, autocast_dtype=None,
                truth=dict(cause="domain_error", module="loss", phase="forward", op="aten.pow", first_bad_step=3, sample=2,
                           line="return (1 - overlap ** alpha).mean()", also_op=("aten.sqrt",), why="box 2 does not touch its target, so its complete IoU is negative"))
