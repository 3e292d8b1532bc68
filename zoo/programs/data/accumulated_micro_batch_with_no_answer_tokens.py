"""Instruction tuning with gradient accumulation: each batch is a list of four micro-batches, only the
answer tokens count (prompt tokens have the label -100).

What goes wrong: in one micro-batch the prompts were cut off before any answer began, all labels are
-100, and the mean over no tokens is NaN; it spoils the sum over the other three.
Follows https://github.com/pytorch/pytorch/issues/70348 and https://github.com/pytorch/pytorch/issues/116349.
True cause: one micro-batch has no label that is not ignored, so the mean cross entropy is 0/0."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, MAX_LEN = 30, 12


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 16)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


def example(g, prompt_len):
    ids = torch.randint(0, VOCAB, (MAX_LEN,), generator=g)
    labels = ids.clone()
    labels[:prompt_len] = -100
    return ids, labels


def micro_batches(accumulation=4, steps=9):
    g = torch.Generator().manual_seed(50)
    for step in range(steps):
        group = []
        for k in range(accumulation):
            prompts = [4, 7] if (step, k) != (5, 2) else [12, 12]  # two very long prompts, truncated
            pairs = [example(g, p) for p in prompts]
            group.append(tuple(torch.stack(t) for t in zip(*pairs)))
        yield group


def build():
    torch.manual_seed(0)
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def micro_loss(model, ids, labels):
        logits = model(ids)[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100)

    def loss_fn(model, group):
        return sum(micro_loss(model, ids, labels) / len(group) for ids, labels in group)

    return dict(model=model, optimizer=optimizer, batches=list(micro_batches()), loss_fn=loss_fn, steps=9,
                autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("bad_input_data", "division_by_zero"), first_bad_step=5, phase="forward",
                           module="loss", op="aten.nll_loss_forward", line="ignore_index=-100)",
                           repair=("labels[:, 1:].flatten(), ignore_index=-100)", 'labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / (labels[:, 1:] != -100).sum().clamp(min=1)')))
