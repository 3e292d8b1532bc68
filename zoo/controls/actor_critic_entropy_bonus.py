"""Advantage actor-critic with an entropy bonus; the trunk is shared by actor and critic.

Healthy twin of actor_critic_entropy_bonus_lr_too_high.py."""

import torch
import torch.nn.functional as F
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self, obs=6, actions=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.actor = nn.Linear(48, actions)
        self.critic = nn.Linear(48, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return self.actor(h), self.critic(h).squeeze(-1)


def transitions(n_updates=40, n_envs=16):
    g = torch.Generator().manual_seed(21)
    for _ in range(n_updates):
        obs = torch.randn(n_envs, 6, generator=g)
        action = torch.randint(0, 3, (n_envs,), generator=g)
        reward = obs[torch.arange(n_envs), action] + 5.0
        yield obs, action, reward


def build():
    torch.manual_seed(4)
    model = ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = list(transitions())

    def loss_fn(model, batch):
        obs, action, reward = batch
        logits, value = model(obs)
        logp = F.log_softmax(logits, dim=-1)
        entropy = -(logp.exp() * logp).sum(-1).mean()
        advantage = (reward - value).detach()
        policy_loss = -(logp.gather(1, action[:, None]).squeeze(1) * advantage).mean()
        value_loss = F.mse_loss(value, reward)
        return policy_loss + 0.5 * value_loss - 0.01 * entropy

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="benign", first_bad_step=None))
