"""Geodesic loss by acos of the trace: a prediction that starts from the identity has no angle to an identity target, the cosine is exactly 1.
After https://github.com/papagina/RotationContinuity/issues/11 (in order to avoid loss is Nan I clamp to 0.9999).
True cause: the slope of acos at its boundary is infinite."""
import torch
import torch.nn as nn


def axis_angle(v):
    x, y, z = v.unbind(-1)
    o = torch.zeros_like(x)
    K = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(-1, 3, 3)
    return torch.linalg.matrix_exp(K)


def geodesic(R, S):
    cos = ((R @ S.transpose(1, 2)).diagonal(dim1=1, dim2=2).sum(1) - 1) / 2
    return torch.acos(torch.clamp(cos, -1, 1))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, f, known):
        return self.fc(f) * (1 - known)[:, None]            # a calibrated camera needs no correction


def build():
    torch.manual_seed(1)
    model = nn.ModuleDict({"res": Residual()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    batches = [[torch.randn(4, 5, generator=g), torch.zeros(4), torch.randn(4, 3, generator=g)] for _ in range(4)]
    batches[2][1][1], batches[2][2][1] = 1.0, 0.0

    def loss_fn(m, b):
        f, known, target = b
        return geodesic(axis_angle(m["res"](f, known)), axis_angle(target)).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="loss", phase="backward", op="aten.rsqrt", also_op=("aten.mul", "aten.div"), first_bad_step=2, loss_finite_at_first_bad_step=True, line="torch.acos(torch.clamp(cos, -1, 1))", sample=1))
