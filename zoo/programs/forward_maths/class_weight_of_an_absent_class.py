"""Class weights are computed from the counts of each batch; a batch without the rare class gives it an infinite weight, and 0 * inf is NaN.
Written for this.
True cause: division by a count of zero."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def balanced(labels, classes):
    counts = torch.stack([(labels == c).sum() for c in range(classes)])
    return labels.numel() / (classes * counts)


def build():
    torch.manual_seed(6)
    clf = nn.Linear(7, 3)
    opt = torch.optim.SGD(clf.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(7)
    ys = ([0, 1, 2, 0, 1, 0], [0, 2, 2, 1, 1, 0], [0, 1, 1, 0, 1, 0], [2, 1, 0, 0, 1, 0])
    batches = [{"x": torch.randn(6, 7, generator=g), "y": torch.tensor(y)} for y in ys]

    def loss_fn(m, b):
        w = balanced(b["y"], 3)
        onehot = F.one_hot(b["y"], 3).float()
        return -(w * onehot * F.log_softmax(m(b["x"]), 1)).sum(1).mean()

    return dict(model=clf, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("zero_times_inf", "empty_reduction"), module="loss", phase="forward", op="aten.div", also_op=("aten.mul", "aten.reciprocal"), first_bad_step=2, line="labels.numel() / (classes * counts)"))
