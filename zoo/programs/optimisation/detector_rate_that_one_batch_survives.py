"""A one-stage detector: box sizes are exp of a layer, SGD with momentum and a rate of 1. The loss wanders for ten steps before exp overflows.
True cause: the learning rate (0.01 trains). Updates on the last batch alone stay finite at this rate, but raise its loss."""
import torch, torch.nn as nn, torch.nn.functional as F

class Head(nn.Module):
    def __init__(s):
        super().__init__()
        s.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        s.cls, s.reg = nn.Conv2d(32, 4, 3, 1, 1), nn.Conv2d(32, 4, 3, 1, 1)
    def forward(s, x):
        f = s.backbone(x); r = s.reg(f)
        sizes = r[:, 2:].exp()
        return s.cls(f), torch.cat([r[:, :2].sigmoid(), sizes], 1)

def focal(logits, t):
    ce = F.binary_cross_entropy_with_logits(logits, t, reduction="none")
    p = torch.sigmoid(logits); hit = p * t + (1 - p) * (1 - t)
    return (ce * (1 - hit) ** 2).sum() / t.sum().clamp(min=1)

def build():
    torch.manual_seed(0); net = Head()
    opt = torch.optim.SGD(net.parameters(), 1.0, momentum=0.9, weight_decay=5e-4)
    g = torch.Generator().manual_seed(6); data = []
    for _ in range(40):
        pos = (torch.rand(4, 1, 4, 4, generator=g) < 0.2).float()
        data.append((torch.rand(4, 3, 16, 16, generator=g), (torch.rand(4, 4, 4, 4, generator=g) < 0.1).float() * pos,
                     torch.rand(4, 4, 4, 4, generator=g) * 2, pos))
    def loss_fn(net, b):
        image, labels, boxes, pos = b
        cls, box = net(image)
        return focal(cls, labels) + (F.smooth_l1_loss(box, boxes, reduction="none") * pos).sum() / pos.sum()
    return dict(model=net, optimizer=opt, batches=data, loss_fn=loss_fn, steps=20, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="", also_module=["loss"], phase="forward", op="aten.exp", first_bad_step=10, line="sizes ="))
