"""Character language model: two transformer blocks, AdamW, the "Noam" warm-up schedule.

What goes wrong: in the schedule the exponent of the warm-up lost its minus sign, so the learning
rate is in the thousands from the first updates; with weight decay the weights multiply by a big
factor at each step.
True cause: the warm-up exponent lost its minus sign, so the schedule gives a learning rate of about a
thousand and more and the weights explode."""

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, D_MODEL, CONTEXT, WARMUP = 40, 32, 24, 400


def noam(step):
    step = max(step, 1)
    return D_MODEL ** -0.5 * min(step ** -0.5 * 1e6, step * WARMUP ** 1.5)


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
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=1, phase="backward",
                           module="blocks.1.self_attn", op="aten._scaled_dot_product_flash_attention_for_cpu_backward",
                           line="h = block(h, src_mask=mask, is_causal=True)",
                           repair=("min(step ** -0.5 * 1e6, step * WARMUP ** 1.5)", "min(step ** -0.5, step * WARMUP ** -1.5)")))
