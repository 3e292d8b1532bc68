"""Protein-like point clouds compared after Kabsch alignment (SVD of the covariance). In batch 2 one target is a single repeated coordinate
(a residue with missing atoms, all filled with the same position): after centring the covariance is exactly 0, its singular values
are all equal, and the SVD's backward divides by their differences.
True cause: degenerate SVD in the backward; the loss is finite."""
import torch
import torch.nn as nn


class Kabsch(nn.Module):
    def forward(self, p, q):
        p, q = p - p.mean(1, keepdim=True), q - q.mean(1, keepdim=True)
        u, s, vh = torch.linalg.svd(p.transpose(1, 2) @ q)
        rot = u @ vh
        return (p @ rot - q).pow(2).sum(-1).mean(-1)


class Folding(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True)
        self.xyz = nn.Linear(16, 3)
        self.align = Kabsch()

    def forward(self, seq, coords):
        return self.align(self.xyz(self.rnn(self.emb(seq))[0]), coords)


def build():
    torch.manual_seed(0)
    model = Folding()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        coords = torch.randn(4, 8, 3, generator=g)
        if i == 2:
            coords[1] = torch.tensor([1.0, -2.0, 0.5])
        batches.append((torch.randint(0, 10, (4, 8), generator=g), coords))

    def loss_fn(m, b):
        return m(*b).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="align", phase="backward", op="aten.div", first_bad_step=2,
                           node="LinalgSvdBackward0", loss_finite_at_first_bad_step=True))
