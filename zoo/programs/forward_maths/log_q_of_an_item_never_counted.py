"""A two-tower retriever corrects in-batch negatives by the logarithm of the items' sampling probability, estimated from counts of an earlier log. A new item has no count.
After https://github.com/NVIDIA-Merlin/models/pull/457 (the missing logQ correction of the sampled softmax).
True cause: the logarithm of a probability of zero."""
import torch
import torch.nn.functional as F
from torch import nn


class Tower(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.emb = nn.Embedding(n, d)
        self.proj = nn.Linear(d, d)

    def forward(self, ids):
        return F.normalize(self.proj(self.emb(ids)), dim=-1)


class TwoTower(nn.Module):
    def __init__(self, users, items, counts, d=8):
        super().__init__()
        self.user, self.item = Tower(users, d), Tower(items, d)
        self.register_buffer("probability", counts / counts.sum())
        self.temperature = 0.1

    def forward(self, user_ids, item_ids):
        logits = self.user(user_ids) @ self.item(item_ids).t() / self.temperature
        return logits


def sampled_softmax(model, batch):
    logits = model(batch["user"], batch["item"])
    corrected = logits - torch.log(model.probability[batch["item"]])
    duplicate = (batch["item"][:, None] == batch["item"][None]) & ~torch.eye(len(logits), dtype=torch.bool)
    return F.cross_entropy(corrected.masked_fill(duplicate, -1e4), torch.arange(len(logits)))


def build():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(4)
    counts = torch.randint(3, 400, (25,), generator=g).float()
    counts[24] = 0                                         # released after the counts were taken
    model = TwoTower(30, 25, counts)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    batches = []
    for i in range(6):
        items = torch.randint(0, 24, (7,), generator=g)
        if i == 4:
            items[3] = 24
        batches.append({"user": torch.randint(0, 30, (7,), generator=g), "item": items})
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=sampled_softmax, steps=6, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=4, sample=3,
                           line="corrected = logits - torch.log(model.probability", why="item 24 has a count of 0, so log q is -inf and the corrected logit inf"))
