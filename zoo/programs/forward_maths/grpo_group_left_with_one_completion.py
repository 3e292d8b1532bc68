"""GRPO with a toy policy over 12 tokens. Two tokens are banned by a logit of -Inf, which is legal: they are never sampled and the log
of their probability is never gathered. Completions that hit the length limit are dropped before the group statistics; in batch 2 one
prompt keeps a single completion, and the unbiased standard deviation of one reward is NaN. That is the true cause."""
import torch
from torch import nn


class TinyPolicy(nn.Module):
    def __init__(self, vocab=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, 16)
        self.gru = nn.GRU(16, 24, batch_first=True)
        self.lm_head = nn.Linear(24, vocab)

    def forward(self, ids):
        logits = self.lm_head(self.gru(self.emb(ids))[0])
        banned = torch.zeros(logits.shape[-1], dtype=torch.bool)
        banned[:2] = True
        return logits.masked_fill(banned, float("-inf")).log_softmax(-1)


def group_advantages(rewards, group, keep):
    adv = torch.zeros_like(rewards)
    for g in group.unique():
        rows = ((group == g) & keep).nonzero().squeeze(-1)
        r = rewards[rows]
        adv[rows] = (r - r.mean()) / (r.std() + 1e-4)
    return adv


def loss_fn(model, batch):
    adv = group_advantages(batch["rewards"], batch["group"], batch["keep"])
    logp = model(batch["ids"][:, :-1]).gather(-1, batch["ids"][:, 1:, None]).squeeze(-1)
    ratio = (logp - logp.detach()).exp()
    mask = batch["keep"].float()[:, None].expand_as(logp)
    return -(ratio * adv[:, None] * mask).sum() / mask.sum()


def build():
    torch.manual_seed(2)
    model = TinyPolicy()
    batches = []
    for _ in range(5):
        batches.append(dict(ids=torch.randint(2, 12, (8, 7)), rewards=torch.rand(8), group=torch.arange(8) // 4,
                            keep=torch.ones(8, dtype=torch.bool)))
    batches[2]["keep"][5:] = False
    truth = dict(
        cause="std_of_one_element", first_bad_step=2, phase="forward", module="loss", op="aten.std",
        line="adv[rows] = (r - r.mean()) / (r.std() + 1e-4)",
        why="group 1 of batch 2 has one completion left: the unbiased std divides by zero; the -Inf logits of the banned tokens are innocent",
        repair=("(r.std() + 1e-4)", "(r.std(correction=0) + 1e-4)"),
    )
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
