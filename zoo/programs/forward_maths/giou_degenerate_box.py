"""Detection with a GIoU loss: an annotation of zero size meets a prediction that the decoder clamps to the same empty box. Intersection 0 over union 0.
True cause: division by a union of exactly zero."""
import torch, torch.nn as nn

class Detector(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()); s.box = nn.Linear(8, 4)
    def forward(s, x):
        c, wh = s.box(s.body(x)).split(2, -1)
        wh = torch.relu(wh)                                    # sizes are not negative
        return torch.cat([c - wh / 2, c + wh / 2], -1)

def giou(a, b):
    area = lambda t: (t[:, 2] - t[:, 0]) * (t[:, 3] - t[:, 1])
    inter = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    union = area(a) + area(b) - inter
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(-1)
    iou = inter / union
    return (1 - iou + (hull - union) / hull).mean()

def build():
    torch.manual_seed(0); model = Detector(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.box.bias.copy_(torch.tensor([0.5, 0.5, 2.0, -3.0]))
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        p = torch.rand(3, 2, generator=g); boxes = torch.cat([p, p + 0.3], -1)
        if i == 2: boxes[1, 2:] = boxes[1, :2]                 # a click instead of a drag
        batches.append(dict(image=torch.randn(3, 3, 8, 8, generator=g), boxes=boxes))
    def loss_fn(m, b): return giou(m(b["image"]), b["boxes"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=2))
