"""REINFORCE with a Gaussian policy that has a learned log standard deviation.

What goes wrong: lr=4.0 with raw returns; log_std is pushed down and the mean away within a few
updates, the log probability and its gradient blow up.
True cause: the learning rate is far too high for REINFORCE with unnormalised returns; log_std and the mean
explode."""

import torch
from torch import nn

LR = 4.0


class Policy(nn.Module):
    def __init__(self, obs=4, act=2):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, act))
        self.log_std = nn.Parameter(torch.zeros(act))

    def forward(self, obs):
        return self.mu(obs), self.log_std.exp()


def log_prob(action, mean, std):
    z = (action - mean) / std
    return (-0.5 * z.pow(2) - std.log() - 0.919).sum(-1)


def rollouts(n_episodes=50, horizon=20):
    """trajectories that were collected earlier: observation, action, return to go"""
    g = torch.Generator().manual_seed(9)
    out = []
    for _ in range(n_episodes):
        obs = torch.randn(horizon, 4, generator=g)
        act = obs[:, :2] * 0.8 + 0.3 * torch.randn(horizon, 2, generator=g)
        reward = 10.0 - (act - obs[:, :2]).pow(2).sum(-1)
        ret = reward.flip(0).cumsum(0).flip(0)
        out.append((obs, act, ret))
    return out


def build():
    torch.manual_seed(2)
    policy = Policy()
    optimizer = torch.optim.SGD(policy.parameters(), lr=LR)
    batches = rollouts()

    def loss_fn(policy, episode):
        obs, act, ret = episode
        mean, std = policy(obs)
        return -(log_prob(act, mean, std) * ret / 100.0).mean()

    return dict(model=policy, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=50, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient", "exp_overflow", "division_by_zero"), first_bad_step=2,
                           phase="forward", module="loss", op="aten.exp", line="return self.mu(obs), self.log_std.exp()",
                           repair=("LR = 4.0", "LR = 0.003")))
