"""An interatomic potential with learnable cell strain, trained on forces with create_graph=True. Molecules of unequal size are padded
with atoms at the origin; from batch 2 on there are two of them, and their distance is exactly zero. The pair is masked out of the
energy, and PyTorch gives the norm at zero the gradient zero, so energy and forces are finite. The backward of the force loss
differentiates the norm a second time: there its slope at zero is without bound. That is the true cause."""
import torch
from torch import nn


class PairPotential(nn.Module):
    def __init__(self):
        super().__init__()
        self.strain = nn.Parameter(torch.zeros(3))
        self.mlp = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Linear(24, 1))
        self.register_buffer("centres", torch.linspace(0.5, 3.0, 6))
        self.register_buffer("pairs", torch.combinations(torch.arange(5)).T)

    def forward(self, pos, real):
        i, j = self.pairs
        vec = (pos[:, i] - pos[:, j]) * (1 + self.strain)
        dist = vec.norm(dim=-1)
        rbf = torch.exp(-(dist[..., None] - self.centres) ** 2)
        pair_energy = self.mlp(rbf).squeeze(-1)
        return (pair_energy * (real[:, i] & real[:, j])).sum(1)


def loss_fn(model, batch):
    pos = batch["pos"].clone().requires_grad_()
    energy = model(pos, batch["real"])
    forces = -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]
    return (energy - batch["energy"]).pow(2).mean() + 10 * (forces - batch["forces"]).pow(2).mean()


def build():
    torch.manual_seed(8)
    model = PairPotential()
    grid = torch.tensor([[1.0, 0, 0], [0, 1.2, 0], [0, 0, 1.4], [1.1, 1.3, 0.2], [0.3, 1.0, 1.5]])
    batches = []
    for k in range(5):
        real = torch.ones(4, 5, dtype=torch.bool)
        real[1, 4] = False
        if k >= 2:
            real[2, 3:] = False
        pos = (grid + 0.1 * torch.randn(4, 5, 3)) * real[..., None]
        batches.append(dict(pos=pos, real=real, energy=torch.randn(4), forces=0.1 * torch.randn(4, 5, 3) * real[..., None]))
    truth = dict(
        cause="singular_gradient_at_zero", also=["where_unselected_branch", "division_by_zero"], first_bad_step=2, phase="backward",
        module="loss", also_module=["", "mlp"], op="aten.div", also_op=["aten.mul", "aten.neg"], line="dist = vec.norm(dim=-1)", loss_finite_at_first_bad_step=True,
        why="two padded atoms coincide: the second derivative of the norm at zero divides by zero and is multiplied by a zero gradient",
        repair=("vec.norm(dim=-1)", "(vec.pow(2).sum(-1) + 1e-12).sqrt()"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
