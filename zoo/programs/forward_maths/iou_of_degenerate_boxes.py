"""An IoU loss without an eps: the annotation of one object has no width, the predicted box has collapsed onto the same point, so the union is 0.
True cause: division by an area of exactly 0 (box 1 of batch 2)."""
import torch, torch.nn as nn

class IoU(nn.Module):
    def forward(s, a, b):
        side = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0)
        inter = side.prod(-1); area = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1)
        return inter / (area - inter)
class Head(nn.Module):
    def __init__(s): super().__init__(); s.size = nn.Linear(6, 2); nn.init.constant_(s.size.bias, 1.0); s.iou = IoU()
    def forward(s, x, corner, box): return s.iou(torch.cat([corner, corner + s.size(x).relu()], -1), box)

def build():
    torch.manual_seed(0); model = Head(); opt = torch.optim.Adagrad(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x, corner = torch.randn(4, 6, generator=g), torch.rand(4, 2, generator=g); size = 0.5 + torch.rand(4, 2, generator=g)
        if i == 2: x[1] = -12.0 * model.size.weight.detach().sum(0).sign(); size[1, 0] = 0.0
        batches.append((x, corner, torch.cat([corner, corner + size], -1)))
    def loss_fn(m, b): return 1 - m(*b).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="iou", phase="forward", op="aten.div", first_bad_step=2, grads_finite=True))
