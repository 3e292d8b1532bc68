"""Triplet loss on a matrix of Euclidean distances, sqrt(sum((a - b)^2)). The diagonal is exactly 0; it is never used (positives and negatives
are picked by index, i != j), so its gradient is exactly 0 - and 0 / (2 * sqrt(0)) is NaN. Fails in the very first step.
True cause: an unselected branch with an infinite derivative. TRAP: the margin, the embeddings, the mask all look right, forward is finite."""
import torch
import torch.nn as nn


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 6))

    def forward(self, x):
        return self.net(x)


class PairwiseDistance(nn.Module):
    def forward(self, z):
        return (z[:, None] - z[None]).pow(2).sum(-1).sqrt()


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.distance = Embedder(), PairwiseDistance()

    def forward(self, x):
        return self.distance(self.embed(x))


def triplet(d, y, margin=0.5):
    n = len(y)
    i, j = torch.triu_indices(n, n, offset=1)
    same = y[i] == y[j]
    pos, neg = d[i[same], j[same]], d[i[~same], j[~same]]
    return torch.relu(pos[:, None] - neg[None] + margin).mean()


def build():
    torch.manual_seed(0)
    model = Metric()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 12, generator=g), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])) for _ in range(3)]

    def loss_fn(m, b):
        return triplet(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="distance", phase="backward", op="aten.div", first_bad_step=0,
                           node="SqrtBackward0", loss_finite_at_first_bad_step=True, trap=True))
