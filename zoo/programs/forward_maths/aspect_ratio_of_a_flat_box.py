"""CIoU: atan(w / h) of a flat ground-truth box; w / 0 is Inf, atan makes it finite again, and its gradient is 0 * inf.
After https://github.com/Zzh-tju/DIoU-pytorch-detectron/issues/3 (CIoU gives NaN values).
True cause: division by zero; the forward pass hides it."""
import torch
from torch import nn


class Size(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def forward(self, f, visible):
        return self.fc(f).exp() * visible


def aspect(w, h):
    return torch.atan(w / h)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"size": Size()})
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = [{"f": torch.randn(4, 6, generator=g), "gt": torch.rand(4, 2, generator=g) + 0.5, "visible": torch.ones(4, 2)} for _ in range(4)]
    batches[2]["visible"][0, 1] = 0.0                          # a box that is cut at the border has no height left

    def loss_fn(m, b):
        w, h = m["size"](b["f"], b["visible"]).unbind(1)
        v = (aspect(b["gt"][:, 0], b["gt"][:, 1]) - aspect(w, h)) ** 2
        return v.mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", also_phase=("backward",), op="aten.div", also_op=("aten.mul",), first_bad_step=2, loss_finite_at_first_bad_step=True, line="return torch.atan(w / h)", sample=0))
