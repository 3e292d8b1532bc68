"""PPO-like update with normalised advantages per minibatch.

What goes wrong: 129 transitions are split into minibatches of 32; the last minibatch has one
transition, and the standard deviation of one number (with Bessel's correction) is NaN.
True cause: the last minibatch holds a single transition, and the unbiased standard deviation of one element
is NaN."""

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, obs):
        return torch.distributions.Categorical(logits=self.actor(obs)), self.critic(obs).squeeze(-1)


def rollout(n=129):
    g = torch.Generator().manual_seed(14)
    obs = torch.randn(n, 4, generator=g)
    act = torch.randint(0, 2, (n,), generator=g)
    adv = torch.randn(n, generator=g)
    ret = adv + obs.sum(1)
    old_logp = torch.full((n,), -0.69)
    return obs, act, adv, ret, old_logp


def minibatches(data, size=32):
    for start in range(0, data[0].shape[0], size):
        yield tuple(t[start:start + size] for t in data)


def build():
    torch.manual_seed(3)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    batches = list(minibatches(rollout()))

    def loss_fn(agent, batch):
        obs, act, adv, ret, old_logp = batch
        dist, value = agent(obs)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        ratio = (dist.log_prob(act) - old_logp).exp()
        policy = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        return policy + 0.5 * (value - ret).pow(2).mean() - 0.01 * dist.entropy().mean()

    return dict(model=agent, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=2 * len(batches),
                autocast_dtype=None,
                truth=dict(cause="std_of_one_element", also=("division_by_zero",), first_bad_step=4, phase="forward", module="loss",
                           op="aten.std", line="adv = (adv - adv.mean())", sample=0, repair=("adv.std()", "adv.std(unbiased=False)")))
