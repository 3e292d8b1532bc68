"""Sequence-level policy optimisation (GSPO): the clamped log ratio is computed and never used, so the mean log ratio of a whole answer goes into exp as it is.
One answer of the rollout was scored by an engine with another template: its log-probabilities are far below those of the trainer.
After https://github.com/OpenRLHF/OpenRLHF/pull/1293 (the clamp of the GSPO branch is assigned and never read; the exponent is unbounded).
True cause: exp overflows for the mean log ratio of one answer."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class PolicyLossConfig:
    clip_low: float = 0.2
    clip_high: float = 0.28
    kind: str = "gspo"


class TinyPolicy(nn.Module):
    def __init__(self, vocab=11, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mixer = nn.GRU(width, width, batch_first=True)
        self.lm_head = nn.Linear(width, vocab)

    def forward(self, ids):
        hidden, _ = self.mixer(self.embed(ids[:, :-1]))
        logits = self.lm_head(hidden)
        return F.log_softmax(logits, dim=-1).gather(2, ids[:, 1:, None]).squeeze(2)


def policy_loss(cfg, logps, old_logps, advantages, mask):
    raw_log_ratio = logps - old_logps
    if cfg.kind == "gspo":
        log_ratio = raw_log_ratio.clamp(-20.0, 20.0)
        seq_log_ratio = (raw_log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        ratio = seq_log_ratio.exp().unsqueeze(-1) * mask
    else:
        log_ratio = raw_log_ratio.clamp(-20.0, 20.0)
        ratio = log_ratio.exp()
    surr1 = ratio * advantages[:, None]
    surr2 = ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high) * advantages[:, None]
    return -(torch.min(surr1, surr2) * mask).sum() / mask.sum()


def build():
    torch.manual_seed(0)
    cfg, policy = PolicyLossConfig(), TinyPolicy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(7)
    rollouts = []
    for step in range(7):
        ids = torch.randint(0, 11, (6, 9), generator=g)
        mask = (torch.arange(8)[None] < torch.tensor([8, 6, 7, 5, 8, 4])[:, None]).float()
        old = -2.4 + 0.1 * torch.randn(6, 8, generator=g)
        adv = torch.tensor([0.9, -1.1, 0.4, 0.2, -0.8, 0.4])
        if step == 4:
            old[1] -= 110.0
        rollouts.append({"ids": ids, "mask": mask, "old_logps": old, "advantages": adv})

    def loss_fn(model, rollout):
        return policy_loss(cfg, model(rollout["ids"]), rollout["old_logps"], rollout["advantages"], rollout["mask"])

    return dict(model=policy, optimizer=optimizer, batches=rollouts, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=4, sample=1,
                           line="ratio = seq_log_ratio.exp()", also=("input_out_of_scale",), loss_finite_at_first_bad_step=False,
                           why="the mean log ratio of answer 1 is about 108, and exp(108) is above the largest float32"))
