"""The box loss is divided by the number of positive anchors of the batch; one batch of background images has none.
After https://github.com/yhenon/pytorch-retinanet/issues/172 (the classification loss clamps the number of positive anchors; this code does not).
True cause: a mean over zero positives."""
import torch
from torch import nn
import torch.nn.functional as F


def build():
    torch.manual_seed(1)
    model = nn.ModuleDict(dict(cls=nn.Conv2d(3, 2, 1), reg=nn.Conv2d(3, 8, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    g = torch.Generator().manual_seed(5)

    def sample(p):
        return dict(img=torch.randn(2, 3, 6, 6, generator=g), pos=(torch.rand(2, 2, 6, 6, generator=g) < p).float(), delta=torch.randn(2, 8, 6, 6, generator=g))

    batches = [sample(p) for p in (0.1, 0.2, 0.0, 0.1)]

    def focal(logits, pos):
        return F.binary_cross_entropy_with_logits(logits, pos)

    def loss_fn(m, b):
        num_pos = b["pos"].sum()
        l1 = (m["reg"](b["img"]) - b["delta"]).abs() * b["pos"].repeat_interleave(4, 1)
        return {"loss_cls": focal(m["cls"](b["img"]), b["pos"]), "loss_bbox": l1.sum() / num_pos}

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("division_by_zero",), module="loss", phase="forward", op="aten.div", first_bad_step=2, line='"loss_bbox": l1.sum() / num_pos'))
