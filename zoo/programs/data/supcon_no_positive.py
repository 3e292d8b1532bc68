"""Supervised contrastive loss: the mean over the positives of each anchor. In batch 4 one class occurs once, so its anchor has no
positive and the mean is 0/0.
True cause: empty reduction (division by a count of zero); temperature and embeddings are fine."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(2, 8, 5, stride=2), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 8))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


def supcon(z, y, temperature=0.07):
    n = len(y)
    eye = torch.eye(n, dtype=torch.bool)
    sim = (z @ z.t() / temperature).masked_fill(eye, -1e9)
    logp = sim - torch.logsumexp(sim, dim=1, keepdim=True)
    positive = (y[:, None] == y[None, :]) & ~eye
    per_anchor = (logp * positive).sum(1) / positive.sum(1)
    return -per_anchor.mean()


def build():
    torch.manual_seed(0)
    model = Encoder()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        y = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
        if i == 4:
            y = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
        batches.append((torch.randn(8, 2, 32, generator=g), y))

    def loss_fn(m, b):
        return supcon(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.div", first_bad_step=4,
                           also=dict(cause=["division_by_zero"])))
