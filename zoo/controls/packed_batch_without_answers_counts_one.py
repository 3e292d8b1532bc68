"""CONTROL: packed instruction data with a summed loss over the number of answer tokens, at least one. One pack holds only prompts: its loss is 0 / 1, its gradients are zero,
and the update is that of the momentum.
After https://github.com/allenai/OLMo-core/pull/657 (clamp the number of tokens when all labels of a rank are ignored)."""
import torch
import torch.nn.functional as F
from torch import nn


class PackedLM(nn.Module):
    def __init__(self, vocab=13, d=16):
        super().__init__()
        self.emb, self.mix, self.head = nn.Embedding(vocab, d), nn.Conv1d(d, d, 3), nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        return self.head(h + torch.tanh(self.mix(F.pad(h.transpose(1, 2), (2, 0))).transpose(1, 2)))


def build():
    torch.manual_seed(0)
    model = PackedLM()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(8)
    batches = []
    for answers in (9, 4, 0, 12, 1, 0):
        ids = torch.randint(0, 13, (2, 16), generator=g)
        labels = ids.clone()
        labels[:, : 16 - answers] = -100
        batches.append((ids, labels))

    def loss_fn(m, b):
        ids, labels = b
        total = F.cross_entropy(m(ids[:, :-1]).flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        return total / (labels[:, 1:] != -100).sum().clamp(min=1)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
