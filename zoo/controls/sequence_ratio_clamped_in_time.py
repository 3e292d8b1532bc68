"""CONTROL: sequence-level policy optimisation in which the mean log ratio is clamped at 20 before exp. One answer has a ratio of e^20 and a negative advantage: the loss jumps
to a hundred million for one batch, the gradients are large and finite, they are clipped, and training goes on.
After https://github.com/OpenRLHF/OpenRLHF/pull/1293 (bound the exponent of the importance ratio so that the gradient stays finite)."""
import torch
import torch.nn.functional as F
from torch import nn


class Policy(nn.Module):
    def __init__(self, vocab=11, width=16):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)

    def forward(self, ids):
        return F.log_softmax(self.head(torch.tanh(self.embed(ids[:, :-1]))), -1).gather(2, ids[:, 1:, None]).squeeze(2)


def build():
    torch.manual_seed(0)
    policy = Policy()
    opt = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    opt.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(policy.parameters(), 1.0) and None)
    g = torch.Generator().manual_seed(7)
    rollouts = []
    for step in range(8):
        old = -2.4 + 0.1 * torch.randn(6, 8, generator=g)
        if step == 4:
            old[1] -= 110.0
        rollouts.append((torch.randint(0, 11, (6, 9), generator=g), old, torch.tensor([0.9, -1.1, 0.4, 0.2, -0.8, 0.4])))

    def loss_fn(model, rollout):
        ids, old, advantage = rollout
        ratio = (model(ids) - old).mean(-1).clamp(-20.0, 20.0).exp()
        return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).mean()

    return dict(model=policy, optimizer=opt, batches=rollouts, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
