"""Character language model: two transformer blocks, AdamW, the "Noam" warm-up schedule as in the paper.

The causal mask holds -inf on purpose.

Healthy twin of transformer_noam_warmup_missing_minus_sign.py."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, D_MODEL, CONTEXT, WARMUP = 40, 32, 24, 400


def noam(step):
    step = max(step, 1)
    return D_MODEL ** -0.5 * min(step ** -0.5, step * WARMUP ** -1.5)


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, D_MODEL)
        self.pos = nn.Parameter(0.02 * torch.randn(CONTEXT, D_MODEL))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(D_MODEL, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2))
        self.head = nn.Linear(D_MODEL, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        h = self.tok(ids) + self.pos[: ids.size(1)]
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(h)


def scheduled(batches, scheduler):
    """The batches over and over; the script steps its schedule after each update."""
    while True:
        for batch in batches:
            yield batch
            scheduler.step()


def build():
    torch.manual_seed(3)
    start = torch.randint(0, VOCAB, (10, 8, 1))
    text = (start + torch.arange(CONTEXT + 1) * 7) % VOCAB
    batches = [(t[:, :-1], t[:, 1:]) for t in text]
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    optimizer.register_step_pre_hook(clip)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)

    def loss_fn(model, batch):
        ids, target = batch
        logits = model(ids)
        return F.cross_entropy(logits.reshape(-1, VOCAB), target.reshape(-1))

    return dict(model=model, optimizer=optimizer, batches=scheduled(batches, scheduler), loss_fn=loss_fn, steps=40,
                autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
