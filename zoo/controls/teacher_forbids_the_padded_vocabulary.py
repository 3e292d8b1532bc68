"""CONTROL: the vocabulary of a teacher is padded to a multiple of eight; its logits there are -inf, its probabilities zero. The student has ordinary logits for all
entries, and the forward divergence counts 0 log 0 as 0.
After https://github.com/microsoft/LMOps/issues/38 (a distillation loss with infinite logits that are masked; the NaN came from an empty mask)."""
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, PADDED = 13, 16


class LM(nn.Module):
    def __init__(self, d, mask_padding):
        super().__init__()
        self.emb, self.ff, self.head = nn.Embedding(VOCAB, d), nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU()), nn.Linear(2 * d, PADDED)
        self.register_buffer("bias", torch.where(torch.arange(PADDED) < VOCAB, 0.0, float("-inf") if mask_padding else 0.0))

    def forward(self, ids):
        return self.head(self.ff(self.emb(ids))) + self.bias


def build():
    torch.manual_seed(0)
    pair = nn.ModuleDict({"student": LM(8, mask_padding=False), "teacher": LM(16, mask_padding=True).requires_grad_(False)})
    opt = torch.optim.AdamW(pair["student"].parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(9)
    batches = [torch.randint(0, VOCAB, (4, 6), generator=g) for _ in range(4)]

    def loss_fn(m, ids):
        with torch.no_grad():
            target = m["teacher"](ids).softmax(-1)
        return F.kl_div(m["student"](ids).log_softmax(-1).flatten(0, 1), target.flatten(0, 1), reduction="batchmean")

    return dict(model=pair, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
