"""Retrieval: documents are mean word vectors, compared by a hand-written cosine.

What goes wrong: one document consists of padding only; the padding row of the embedding is zero, so
the document vector is zero and the cosine divides by its norm.
True cause: a document of padding only has a zero vector, and the hand-written cosine divides it by its norm
of zero."""

import torch
import torch.nn.functional as F
from torch import nn

PAD = 0


class DocEncoder(nn.Module):
    def __init__(self, vocab=80, d=20):
        super().__init__()
        self.words = nn.Embedding(vocab, d, padding_idx=PAD)
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, ids):
        keep = (ids != PAD).sum(1, keepdim=True).clamp(min=1)
        return self.words(ids).sum(1) / keep * self.scale


class Cosine(nn.Module):
    def forward(self, a, b):
        a = a / a.norm(dim=1, keepdim=True)
        b = b / torch.linalg.vector_norm(b, dim=1, keepdim=True)
        return a @ b.t()


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = DocEncoder()
        self.cosine = Cosine()

    def forward(self, query, doc):
        return 10 * self.cosine(self.encoder(query), self.encoder(doc))


def click_log():
    g = torch.Generator().manual_seed(61)
    for i in range(11):
        doc = torch.randint(1, 80, (9, 14), generator=g)
        query = doc[:, :3].clone()
        if i == 6:
            doc[4] = PAD
        yield query, doc


def build():
    torch.manual_seed(0)
    model = Retriever()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_fn(model, batch):
        query, doc = batch
        return F.cross_entropy(model(query, doc), torch.arange(len(query)))

    return dict(model=model, optimizer=optimizer, batches=list(click_log()), loss_fn=loss_fn, steps=11,
                autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("bad_input_data",), first_bad_step=6, phase="forward", module="cosine",
                           op="aten.div", line="torch.linalg.vector_norm(b, dim=1", sample=4,
                           repair=("torch.linalg.vector_norm(b, dim=1, keepdim=True)", "torch.linalg.vector_norm(b, dim=1, keepdim=True).clamp(min=1e-8)")))
