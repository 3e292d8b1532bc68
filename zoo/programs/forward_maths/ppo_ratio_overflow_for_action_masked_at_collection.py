"""PPO with discrete actions; the log probabilities of the rollout are stored in the buffer.

What goes wrong: one stored action had been masked with -1e9 logits when its log probability was
computed, so old_logp is about -1e9; exp(new - old) is inf and the unclipped side of the minimum
is taken for a negative advantage.
Follows https://github.com/THUDM/slime/pull/2198 (clamp log-ratios before exp).
True cause: one stored log probability is about -1e9, so the probability ratio exp(new - old) overflows to
inf."""

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, obs):
        return torch.log_softmax(self.net(obs), dim=-1)


def ppo_loss(logp, old_logp, adv, clip=0.2):
    log_ratio = logp - old_logp
    ratio = torch.exp(log_ratio)
    return -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()


def collect(policy):
    g = torch.Generator().manual_seed(8)
    for update in range(14):
        obs = torch.randn(24, 5, generator=g)
        act = torch.randint(0, 4, (24,), generator=g)
        adv = torch.randn(24, generator=g)
        with torch.no_grad():
            logits = policy.net(obs)
            if update == 6:
                logits[10, act[10]] = -1e9  # the mask of the next state was used by mistake
                adv[10] = -0.7
            old_logp = torch.log_softmax(logits, -1).gather(1, act[:, None]).squeeze(1)
        yield obs, act, old_logp, adv


def build():
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)

    def clip(*_):
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)

    optimizer.register_step_pre_hook(clip)
    batches = list(collect(policy))

    def loss_fn(policy, batch):
        obs, act, old_logp, adv = batch
        logp = policy(obs).gather(1, act[:, None]).squeeze(1)
        return ppo_loss(logp, old_logp, adv)

    return dict(model=policy, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=14,
                autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=("bad_input_data", "input_out_of_scale"), first_bad_step=6, phase="forward", module="loss",
                           op="aten.exp", line="ratio = torch.exp(log_ratio)", sample=10,
                           repair=("torch.exp(log_ratio)", "torch.exp(log_ratio.clamp(-20, 20))")))
