"""Kabsch alignment by svd inside the loss: for a symmetric point cloud the singular values are equal, and the gradient of the singular vectors is not defined.
Written for this.
True cause: the backward of svd with a repeated spectrum."""
import torch
import torch.nn as nn


def kabsch_loss(p, q):
    u, s, vt = torch.linalg.svd(p.T @ q)
    r = u @ vt
    return (p @ r - q).square().mean() + (u[:, 0] * vt[0]).sum() * 0.01


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.tensor(0.5))

    def forward(self, p):
        return p * (self.s / self.s.detach()) * (1 + 0 * self.s)


def build():
    model = nn.ModuleDict({"gate": Gate(), "aux": nn.Linear(3, 1)})
    torch.manual_seed(0)
    nn.init.normal_(model["aux"].weight)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    octa = torch.cat([torch.eye(3), -torch.eye(3)])
    clouds = [(torch.randn(6, 3, generator=g), torch.randn(6, 3, generator=g)) for _ in range(3)]
    clouds.insert(2, (octa, octa.clone()))

    def loss_fn(m, pair):
        p, q = pair
        return kabsch_loss(m["gate"](p), q) + m["aux"](q).square().mean()

    return dict(model=model, optimizer=opt, batches=clouds, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="loss", phase="backward", op="aten.div", also_op=("aten.reciprocal", "aten.mul"), first_bad_step=2, loss_finite_at_first_bad_step=True, line="torch.linalg.svd(p.T @ q)"))
