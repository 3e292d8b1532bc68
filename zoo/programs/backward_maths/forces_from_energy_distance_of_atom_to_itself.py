"""Learned interatomic potential: the energy is a sum over pairs, the forces are -dE/dx, and the
loss compares energies and forces with reference values.

What goes wrong: the distance matrix includes the atom with itself; sqrt(0) has an infinite
derivative, so already the forces (a derivative inside the loss) are NaN.
Follows https://github.com/atomistic-machine-learning/schnetpack/pull/6 (zero distances break
the force training).
True cause: the distance of an atom to itself is sqrt(0), whose derivative is infinite, so the forces computed
inside the loss are NaN."""

import torch
from torch import nn


class PairPotential(nn.Module):
    def __init__(self, n_rbf=12):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.5, 5.0, n_rbf))
        self.mlp = nn.Sequential(nn.Linear(n_rbf, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, pos):
        diff = pos[:, :, None, :] - pos[:, None, :, :]
        dist = diff.pow(2).sum(-1).sqrt()
        rbf = torch.exp(-2.0 * (dist[..., None] - self.centers) ** 2)
        pair = self.mlp(rbf).squeeze(-1)
        off = 1.0 - torch.eye(pos.shape[1])
        return 0.5 * (pair * off).sum(dim=(1, 2))


def frames():
    g = torch.Generator().manual_seed(1)
    for _ in range(8):
        pos = torch.randn(4, 6, 3, generator=g) * 1.5
        yield pos, torch.randn(4, generator=g), 0.1 * torch.randn(4, 6, 3, generator=g)


def build():
    torch.manual_seed(0)
    model = PairPotential()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_fn(model, batch):
        pos, e_ref, f_ref = batch
        pos = pos.clone().requires_grad_(True)
        energy = model(pos)
        forces = -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]
        return (energy - e_ref).pow(2).mean() + 100 * (forces - f_ref).pow(2).mean()

    return dict(model=model, optimizer=optimizer, batches=list(frames()), loss_fn=loss_fn, steps=16,
                autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("zero_times_inf", "where_unselected_branch"), first_bad_step=0, phase="forward",
                           module="loss", op="aten.sqrt", also_op=("aten.div",), also_phase=("backward",), line="dist = diff.pow(2)",
                           repair=("diff.pow(2).sum(-1).sqrt()", "(diff.pow(2).sum(-1) + 1e-9).sqrt()")))
