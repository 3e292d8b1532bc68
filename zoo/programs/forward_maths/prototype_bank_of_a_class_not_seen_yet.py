"""Contrastive learning against a bank of class prototypes, a buffer with running sums and counts. The prototype of a class is its sum
divided by its count and then normalised. Scores of classes that were not seen are masked with -Inf, so nothing happens as long as a
class is unseen. From step 3 on the curriculum lets class 4 into the targets before its first sample was added to the bank (samples are
added after the loss), and the mask, made from the curriculum, opens it: 0 / 0. The true cause is the division by a count of zero; the
-Inf of the mask is innocent."""
import torch
from torch import nn
import torch.nn.functional as F


class PrototypeLoss(nn.Module):
    def __init__(self, classes=6, d=8):
        super().__init__()
        self.register_buffer("sums", torch.zeros(classes, d))
        self.register_buffer("counts", torch.zeros(classes, 1))

    def forward(self, z, y, active):
        bank = self.sums[active] / self.counts[active]
        logits = z.new_full((len(z), len(self.sums)), float("-inf"))
        logits[:, active] = z @ F.normalize(bank, dim=1).T / 0.1
        loss = F.cross_entropy(logits, y)
        with torch.no_grad():
            self.sums.index_add_(0, y, z)
            self.counts.index_add_(0, y, torch.ones(len(y), 1))
        return loss


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 8))
        self.bank_loss = PrototypeLoss()


def loss_fn(model, batch):
    x, y, active = batch
    return model.bank_loss(F.normalize(model.encoder(x), dim=1), y, active)


def build():
    torch.manual_seed(44)
    model = Contrastive()
    with torch.no_grad():
        for c in range(4):
            model.bank_loss.sums[c] = F.normalize(torch.randn(8), dim=0) * 3
            model.bank_loss.counts[c] = 3.0
    batches = []
    for k in range(6):
        n = 4 if k < 3 else 5
        batches.append((torch.randn(16, 10), torch.arange(16) % n, torch.arange(n)))
    truth = dict(
        cause="division_by_zero", also=["empty_reduction"], first_bad_step=3, phase="forward", module="bank_loss", op="aten.div",
        line="bank = self.sums[active] / self.counts[active]",
        why="class 4 is active at step 3 and has no sample in the bank yet: its sum and its count are zero",
        repair=("self.counts[active]", "self.counts[active].clamp(min=1)"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=6,
                autocast_dtype=None, truth=truth)
