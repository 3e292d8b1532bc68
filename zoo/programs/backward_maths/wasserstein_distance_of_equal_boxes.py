"""Rotated detection with a Gaussian Wasserstein distance: the root of the squared distance of two Gaussians. An anchor decodes to exactly its target; the distance is
zero and so is its square root, whose slope is infinite.
After https://github.com/open-mmlab/mmrotate/issues/205 (the gradient of sqrt in the Gaussian distance losses is NaN when x == 0).
True cause: the slope of the root at zero."""
import torch
from torch import nn


def to_gaussian(boxes):
    xy, wh, angle = boxes[:, :2], boxes[:, 2:4], boxes[:, 4]
    c, s = angle.cos(), angle.sin()
    rot = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
    return xy, rot @ torch.diag_embed((wh / 2).square()) @ rot.transpose(1, 2)


def gwd_loss(pred, target, tau=1.0):
    p_xy, p_cov = to_gaussian(pred)
    t_xy, t_cov = to_gaussian(target)
    centre = (p_xy - t_xy).square().sum(-1)
    shape = (p_cov - t_cov).square().sum((1, 2))
    distance = torch.sqrt(centre + shape)
    return (1 - 1 / (tau + torch.log1p(distance))).mean()


class RotatedHead(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.reg = nn.Linear(d, 5)
        nn.init.zeros_(self.reg.weight)
        nn.init.zeros_(self.reg.bias)

    def forward(self, feats, anchors):
        delta = self.reg(feats)
        return torch.cat([anchors[:, :2] + delta[:, :2] * anchors[:, 2:4], anchors[:, 2:4] * delta[:, 2:4].exp(), anchors[:, 4:] + delta[:, 4:]], -1)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"neck": nn.Sequential(nn.Linear(6, 12), nn.ReLU()), "head": RotatedHead()})
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    g = torch.Generator().manual_seed(12)
    anchors = torch.tensor([[8.0, 8.0, 4.0, 2.0, 0.0], [16.0, 8.0, 4.0, 2.0, 0.5], [24.0, 8.0, 6.0, 3.0, 1.0]])
    batches = []
    for i in range(3):
        targets = anchors + torch.tensor([0.5, -0.5, 0.2, 0.1, 0.05]) * torch.randn(3, 5, generator=g)
        if i == 0:
            targets[1] = anchors[1]                        # a synthetic label that was snapped to the anchor grid
        batches.append((torch.randn(3, 6, generator=g), targets))

    def loss_fn(m, b):
        return gwd_loss(m["head"](m["neck"](b[0]), anchors), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=0, sample=1,
                           loss_finite_at_first_bad_step=True, line="distance = torch.sqrt(centre + shape)",
                           why="the head starts at zero, so box 1 equals its target; 1 / (2 sqrt(0)) is infinite"))
