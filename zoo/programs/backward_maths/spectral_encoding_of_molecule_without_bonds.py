"""A graph transformer with spectral positional encodings: eigenvectors of a Laplacian with learned edge weights. One molecule of
batch 3 has no bonds at all (salt, isolated ions): its Laplacian is the zero matrix, all eigenvalues are equal, and the backward
of eigh divides by their differences.
True cause: degenerate linear algebra in the backward; the forward is finite."""
import torch
import torch.nn as nn


class SpectralEncoding(nn.Module):
    def __init__(self, bond_types=4, k=3):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(bond_types))
        self.k = k

    def forward(self, bonds):
        w = torch.nn.functional.softplus(self.weight)[bonds] * (bonds > 0)
        w = (w + w.transpose(1, 2)) / 2
        lap = torch.diag_embed(w.sum(-1)) - w
        values, vectors = torch.linalg.eigh(lap)
        return torch.cat([vectors[..., :self.k].abs(), values[..., None]], dim=-1)


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoding = SpectralEncoding()
        self.atom = nn.Embedding(6, 12)
        self.mix, self.out = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, atoms, bonds):
        x = torch.cat([self.atom(atoms), self.encoding(bonds)], dim=-1)
        return self.out(torch.tanh(self.mix(x)).mean(1)).squeeze(-1)


def molecule(g, n=5):
    b = torch.zeros(n, n, dtype=torch.long)
    kinds = torch.tensor([1, 2, 3, 1])                     # a chain with different bonds: a simple spectrum
    for i in range(n - 1):
        b[i, i + 1] = b[i + 1, i] = kinds[i]
    if torch.rand((), generator=g) < 0.5:
        b[0, 2] = b[2, 0] = 2
    return b


def build():
    torch.manual_seed(0)
    model = GraphNet()
    with torch.no_grad():
        model.encoding.weight.copy_(torch.tensor([0.0, 0.3, 1.1, 2.0]))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(8)
    batches = []
    for i in range(5):
        bonds = torch.stack([molecule(g) for _ in range(4)])
        if i == 3:
            bonds[1] = 0
        batches.append((torch.randint(0, 6, (4, 5), generator=g), bonds, torch.randn(4, generator=g)))

    def loss_fn(m, b):
        return (m(b[0], b[1]) - b[2]).abs().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="encoding", phase="backward", op="aten.div_", first_bad_step=3,
                           node="LinalgEighBackward0", loss_finite_at_first_bad_step=True))
