"""Sentence embeddings from DistilBERT, standardised over the batch before the classifier. drop_last=False: the last batch of the
epoch (step 4) holds one sentence, and the unbiased std over one row is NaN.
True cause: std of one element. The text itself is ordinary."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import DistilBertConfig, DistilBertModel


class BatchStandardise(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, z):
        return (z - z.mean(dim=0)) / (z.std(dim=0) + self.eps)


class SentenceClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = DistilBertModel(DistilBertConfig(vocab_size=60, dim=32, hidden_dim=48, n_layers=2, n_heads=4,
                                                     max_position_embeddings=16, dropout=0.0, attention_dropout=0.0))
        self.standardise = BatchStandardise()
        self.out = nn.Linear(32, 3)

    def forward(self, ids, mask):
        h = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.out(self.standardise(pooled))


def build():
    torch.manual_seed(0)
    model = SentenceClassifier()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(2, 60, (33, 9), generator=g)
    mask = torch.ones_like(ids)
    mask[::4, 6:] = 0
    y = torch.randint(0, 3, (33,), generator=g)
    batches = [(ids[i:i + 8], mask[i:i + 8], y[i:i + 8]) for i in range(0, 33, 8)]

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0], b[1]), b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="standardise", phase="forward", op="aten.std", first_bad_step=4))
