"""Energies from pair distances, forces by autograd with create_graph: the diagonal of the distance matrix is sqrt(0).
After https://github.com/deepmodeling/deepmd-kit/pull/5717 (the norm back-propagates to NaN where the vector is zero).
True cause: the slope of the square root at zero is infinite."""
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, pos, drop_self):
        diff = pos[:, None] - pos[None]
        r = diff.square().sum(-1)
        if drop_self:
            r = r + torch.eye(len(pos))
        r = r.sqrt()
        return self.phi(r[..., None]).sum()


def build():
    torch.manual_seed(1)
    model = nn.ModuleDict({"pair": Pair()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    frames = [(torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g), k < 2) for k in range(4)]     # periodic frames keep the self image

    def loss_fn(m, frame):
        pos, forces, drop_self = frame
        pos = pos.clone().requires_grad_(True)
        energy = m["pair"](pos, drop_self)
        (grad,) = torch.autograd.grad(energy, pos, create_graph=True)
        return (forces + grad).square().mean()

    return dict(model=model, optimizer=opt, batches=frames, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="pair", also_module=("loss",), phase="backward", also_phase=("forward",), op="aten.div", also_op=("aten.mul", "aten.sqrt"), first_bad_step=2, line="r = r.sqrt()"))
