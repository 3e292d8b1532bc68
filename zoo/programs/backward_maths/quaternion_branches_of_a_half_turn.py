"""Rotation matrix to quaternion with all branches computed and one selected by where; for a half turn the trace is -1 and the other branch is sqrt(0).
After https://github.com/kornia/kornia/issues/1653 (sqrt(trace + 1.0): nan valued gradients).
True cause: the branch that where does not select."""
import torch
from torch import nn


def quat_w(R):
    trace = R.diagonal(dim1=1, dim2=2).sum(1)
    positive = torch.sqrt(trace + 1.0) / 2
    other = (R[:, 2, 1] - R[:, 1, 2]) / 4
    return torch.where(trace > 0, positive, other)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.full((3, 3), 0.7))

    def forward(self, R):
        return R * (self.s / self.s.detach())            # a straight-through gate: the value is 1


def build():
    model = nn.ModuleDict({"skew": Scale(), "bias": nn.Linear(3, 3)})
    torch.manual_seed(0)
    nn.init.normal_(model["bias"].weight, std=0.1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)

    def rot(a):
        c, s = torch.cos(torch.tensor(a)).item(), torch.sin(torch.tensor(a)).item()
        return [[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]

    half = [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]]
    batches = [torch.tensor([rot(0.3), rot(1.0), rot(0.7)]), torch.tensor([rot(0.1), rot(0.9), rot(0.5)]), torch.tensor([rot(0.2), half, rot(0.4)]), torch.tensor([rot(0.2), rot(0.6), rot(0.4)])]

    def loss_fn(m, R):
        w = quat_w(m["skew"](R))
        return (w - 0.5).square().mean() + m["bias"](R[:, 0]).square().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=("singular_gradient_at_zero",), module="loss", phase="backward", op="aten.div", first_bad_step=2, loss_finite_at_first_bad_step=True, line="positive = torch.sqrt(trace + 1.0)", sample=1))
