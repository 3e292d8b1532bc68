"""GRPO: the last prompt of the epoch has a single completion left, and the unbiased standard deviation of one reward is NaN.
After https://github.com/Jiayi-Pan/TinyZero/issues/89 (it seems the group size for GRPO training is 1).
True cause: the standard deviation of one element."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, vocab=11, d=12):
        super().__init__()
        self.emb, self.rnn, self.lm_head = nn.Embedding(vocab, d), nn.GRU(d, d, batch_first=True), nn.Linear(d, vocab)

    def forward(self, ids):
        return self.lm_head(self.rnn(self.emb(ids))[0])


def group_advantages(rewards, sizes):
    parts = []
    for group in rewards.split(sizes):
        parts.append((group - group.mean()) / (group.std() + 1e-4))
    return torch.cat(parts)


def build():
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for sizes in ([4, 4], [4, 4], [4, 4], [4, 1], [4, 4]):
        n = sum(sizes)
        batches.append({"ids": torch.randint(0, 11, (n, 7), generator=g), "rewards": torch.rand(n, generator=g), "sizes": sizes})

    def loss_fn(model, b):
        logp = F.log_softmax(model(b["ids"][:, :-1]), -1).gather(-1, b["ids"][:, 1:, None]).squeeze(-1)
        adv = group_advantages(b["rewards"], b["sizes"])
        ratio = torch.exp(logp - logp.detach())
        return -(ratio * adv[:, None]).mean()

    return dict(model=policy, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="loss", phase="forward", op="aten.std", first_bad_step=3, line="parts.append(", sample=4))
