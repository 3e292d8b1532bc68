"""Fine-tuning of splats from an exported file that declares more splats than it holds: the last rows are all zeros, with rotations (0, 0, 0, 0). Views that do not see them
train well; the third view does.
After https://github.com/playcanvas/splat-transform/pull/288 (an export with zero-filled rows; a quaternion of zero norm cannot be normalised).
True cause: division by a norm of zero, of rotations that the file left empty."""
import torch
from torch import nn


def read_export(n_real, n_declared, g):
    table = torch.zeros(n_declared, 2 + 4 + 3 + 1)
    table[:n_real, :2] = torch.rand(n_real, 2, generator=g) * 4 + 1
    table[:n_real, 2:6] = torch.randn(n_real, 4, generator=g)
    table[:n_real, 6:9] = -1.0 + 0.1 * torch.randn(n_real, 3, generator=g)
    table[:n_real, 9] = torch.rand(n_real, generator=g)
    return table


def rotation_matrix(q):
    w, x, y, z = (q / q.norm(dim=-1, keepdim=True)).unbind(-1)
    return torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z)], -1).unflatten(-1, (2, 2))


class SplatModel(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.xy, self.quat = nn.Parameter(table[:, :2].clone()), nn.Parameter(table[:, 2:6].clone())
        self.log_scale, self.colour = nn.Parameter(table[:, 6:8].clone()), nn.Parameter(table[:, 9].clone())

    def forward(self, pixels, low, high):
        seen = ((self.xy > low) & (self.xy < high)).all(-1).nonzero().squeeze(-1)
        rot = rotation_matrix(self.quat[seen])
        spread = rot @ torch.diag_embed((2 * self.log_scale[seen]).exp()) @ rot.transpose(1, 2) + 0.3 * torch.eye(2)
        offset = pixels[:, None] - self.xy[seen]
        power = torch.einsum("pni,nij,pnj->pn", offset, torch.linalg.inv(spread), offset)
        return ((-0.5 * power).exp() * self.colour[seen]).sum(-1)


def build():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(11)
    model = nn.ModuleDict({"splats": SplatModel(read_export(30, 36, g))})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    windows = [(1.0, 4.0), (2.0, 5.0), (-1.0, 3.0), (1.5, 4.5)]
    views = [(torch.rand(20, 2, generator=g) * (b - a) + a, a, b, torch.rand(20, generator=g)) for a, b in windows]

    def loss_fn(m, view):
        pixels, low, high, image = view
        return (m["splats"](pixels, low, high) - image).abs().mean()

    return dict(model=model, optimizer=opt, batches=views, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("corrupt_checkpoint", "bad_input_data"), module="splats", phase="forward", op="aten.div", first_bad_step=2, param="splats.quat",
                           line="(q / q.norm(dim=-1, keepdim=True)).unbind(-1)", why="the empty rows lie at the origin, which only the third window contains"))
