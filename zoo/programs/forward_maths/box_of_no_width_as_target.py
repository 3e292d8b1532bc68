"""Regression targets are log(gt width / anchor width); an annotation has the same left and right edge.
After https://github.com/xuannianz/keras-ctpn/issues/1 (divide by zero encountered in log, then the loss got nan).
True cause: the logarithm of zero."""
import torch
import torch.nn as nn


class Coder:
    def __init__(self, anchor_w=16.0, anchor_h=8.0):
        self.w, self.h = anchor_w, anchor_h

    def encode(self, boxes):
        w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        return torch.stack([torch.log(w / self.w), torch.log(h / self.h)], dim=1)


def build():
    torch.manual_seed(2)
    reg, coder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)), Coder()
    opt = torch.optim.Adam(reg.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(5):
        xy = torch.rand(4, 2, generator=g) * 10
        batches.append({"roi": torch.randn(4, 6, generator=g), "gt": torch.cat([xy, xy + 5 + 20 * torch.rand(4, 2, generator=g)], 1)})
    batches[3]["gt"][1, 2] = batches[3]["gt"][1, 0]

    def loss_fn(m, b):
        target = coder.encode(b["gt"])
        return nn.functional.smooth_l1_loss(m(b["roi"]), target)

    return dict(model=reg, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3, line="torch.stack([torch.log(w / self.w)", sample=1))
