"""Supervised contrastive loss: a label occurs once in the batch, the anchor has no positive pair, and its mean is 0 / 0.
After https://github.com/HobbitLong/SupContrast/issues/141 (NaN loss for no positive pair).
True cause: a mean over zero positives."""
import torch
from torch import nn


class SupCon(nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.t = temperature

    def forward(self, z, labels):
        n = len(z)
        sim = z @ z.T / self.t
        eye = torch.eye(n, dtype=torch.bool)
        logp = sim - torch.logsumexp(sim.masked_fill(eye, -1e9), 1, keepdim=True)
        pos = (labels[:, None] == labels[None]) & ~eye
        return -((logp * pos).sum(1) / pos.sum(1)).mean()


def build():
    torch.manual_seed(0)
    net = nn.ModuleDict({"enc": nn.Linear(6, 4), "crit": SupCon()})
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    labels = [[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 2], [0, 0, 0, 1, 1, 2], [2, 2, 1, 1, 0, 0]]
    batches = [(torch.randn(6, 6, generator=g), torch.tensor(l)) for l in labels]
    return dict(model=net, optimizer=opt, batches=batches, loss_fn=lambda m, b: m["crit"](nn.functional.normalize(m["enc"](b[0])), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("division_by_zero",), module="crit", phase="forward", op="aten.div", first_bad_step=2, line="return -((logp * pos).sum(1)", sample=5))
