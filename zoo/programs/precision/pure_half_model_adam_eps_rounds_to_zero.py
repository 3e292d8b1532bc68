"""Text tagger moved to float16 with model.half(), trained with Adam and its default eps.

What goes wrong: eps=1e-8 is zero in float16. Embedding rows of words that are not in the batch have a
gradient of exactly zero, and Adam divides 0 by 0.
Follows https://github.com/pytorch/pytorch/issues/8860 and
https://github.com/google-deepmind/optax/issues/1754.
True cause: Adam's eps of 1e-8 is zero in float16, so parameters with a zero gradient are updated by 0/0."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, vocab=64, tags=5):
        super().__init__()
        self.word = nn.Embedding(vocab, 16)
        self.fc = nn.Linear(16, 32)
        self.tag = nn.Linear(32, tags)

    def forward(self, ids):
        return self.tag(torch.tanh(self.fc(self.word(ids))))


def corpus():
    g = torch.Generator().manual_seed(5)
    out = []
    for _ in range(10):
        ids = torch.randint(0, 40, (8, 6), generator=g)  # words 40..63 are rare
        out.append((ids, ids % 5))
    return out


def build():
    torch.manual_seed(0)
    model = Tagger().half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_fn(model, batch):
        ids, tags = batch
        logits = model(ids)
        return F.cross_entropy(logits.float().flatten(0, 1), tags.flatten())

    return dict(model=model, optimizer=optimizer, batches=corpus(), loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", also=("eps_underflow_half", "division_by_zero"), first_bad_step=0,
                           phase="optimizer", module="optimizer", op="aten.addcdiv_", also_op=("aten._foreach_addcdiv_",),
                           param="word.weight",
                           repair=("torch.optim.Adam(model.parameters(), lr=1e-3)", "torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)")))
