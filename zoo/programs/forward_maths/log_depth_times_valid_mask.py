"""Scale-invariant depth loss: the log of the ground truth is taken first and multiplied by the mask of valid pixels afterwards.
After https://github.com/zhengqili/MegaDepth/issues/38 (torch.log of a depth of 0 is -infinity, the loss is nan).
True cause: the logarithm of zero, and zero times infinity after it."""
import torch
import torch.nn as nn


def silog(pred, gt, lam=0.5):
    mask = (gt > 0).float()
    diff = (torch.log(pred) - torch.log(gt)) * mask
    n = mask.sum()
    return (diff ** 2).sum() / n - lam * (diff.sum() / n) ** 2


class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, x):
        return nn.functional.softplus(self.conv(x)).squeeze(1) + 0.1


def build():
    torch.manual_seed(2)
    net = Depth()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(9)
    data = [[torch.rand(3, 3, 6, 6, generator=g), torch.rand(3, 6, 6, generator=g) * 4 + 0.5] for _ in range(4)]
    data[1][1][2, 0, :3] = 0.0                     # the lidar saw nothing there
    return dict(model=net, optimizer=opt, batches=data, loss_fn=lambda m, b: silog(m(b[0]), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("zero_times_inf",), module="loss", phase="forward", op="aten.log", also_op=("aten.mul",), first_bad_step=1, line="diff = (torch.log(pred)", sample=2))
