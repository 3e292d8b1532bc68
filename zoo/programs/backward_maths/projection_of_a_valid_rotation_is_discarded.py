"""A pose refiner projects its matrices onto rotations by a singular value decomposition and keeps the projection only where the matrix is not orthogonal already.
The refiner starts at the identity, which is kept as it is; the discarded decomposition has three equal singular values.
After https://github.com/scipy/scipy/pull/25767 (valid rotations give NaN gradients through the decomposition, even though where drops its result).
True cause: the backward of a decomposition with equal singular values."""
import torch
from torch import nn


def orthogonalise(matrix, tolerance=1e-6):
    u, _, vh = torch.linalg.svd(matrix)
    projected = u @ vh
    error = (matrix @ matrix.transpose(-1, -2) - torch.eye(3)).abs().amax((-1, -2))
    return torch.where((error > tolerance)[:, None, None], projected, matrix)


class PoseRefiner(nn.Module):
    def __init__(self, views):
        super().__init__()
        self.delta = nn.Parameter(torch.zeros(views, 3, 3))
        self.shift = nn.Parameter(torch.zeros(views, 3))

    def forward(self, points, view):
        rotation = orthogonalise(torch.eye(3) + self.delta[view])
        return torch.einsum("bij,bnj->bni", rotation, points) + self.shift[view][:, None]


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"refiner": PoseRefiner(5)})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    batches = []
    for _ in range(3):
        points = torch.randn(3, 20, 3, generator=g)
        batches.append({"points": points, "target": points + 0.05 * torch.randn(3, 20, 3, generator=g), "view": torch.randperm(5, generator=g)[:3]})

    def loss_fn(m, b):
        return nn.functional.smooth_l1_loss(m["refiner"](b["points"], b["view"]), b["target"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", also=("where_unselected_branch",), module="refiner", phase="backward", op="aten.div", also_op=("aten.mul",),
                           first_bad_step=0, loss_finite_at_first_bad_step=True, line="u, _, vh = torch.linalg.svd(matrix)",
                           why="the identity has three equal singular values; its gradient of 0 is divided by differences of 0"))
