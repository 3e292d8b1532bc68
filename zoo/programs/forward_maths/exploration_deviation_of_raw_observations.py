"""A squashed Gaussian actor turns its second head into a deviation with exp and no limits. The observations are joint torques in raw units; one episode has a crash.
After https://github.com/tensorflow/agents/issues/622 (std_transform is exp; the exponentials exceed float32 because the inputs are not normalised).
True cause: exp overflows for an unbounded log deviation."""
import math

import torch
from torch import nn


class GaussianHead(nn.Module):
    def __init__(self, width, act_dim):
        super().__init__()
        self.mu = nn.Linear(width, act_dim)
        self.log_std = nn.Linear(width, act_dim)

    def forward(self, h):
        return self.mu(h), torch.exp(self.log_std(h))


class SquashedActor(nn.Module):
    def __init__(self, obs_dim=6, act_dim=2):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = GaussianHead(32, act_dim)

    def forward(self, obs, noise):
        mu, std = self.head(self.trunk(obs))
        pre = mu + std * noise
        logp = -0.5 * noise.square() - std.log() - 0.5 * math.log(2 * math.pi)
        correction = 2 * (math.log(2) - pre - nn.functional.softplus(-2 * pre))
        return torch.tanh(pre), (logp - correction).sum(-1)


class Critic(nn.Module):
    def __init__(self, obs_dim=6, act_dim=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim + act_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, act):
        return self.net(torch.cat([obs, act], -1)).squeeze(-1)


def build():
    torch.manual_seed(12)
    agent = nn.ModuleDict({"actor": SquashedActor(), "critic": Critic()})
    with torch.no_grad():
        agent["actor"].head.log_std.weight.copy_(agent["actor"].head.log_std.weight.abs())   # warm start: wide exploration
    opt = torch.optim.Adam(agent["actor"].parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(13)
    batches = []
    for i in range(5):
        obs = torch.randn(10, 6, generator=g)
        if i == 3:
            obs[7] *= 9000.0
        batches.append((obs, torch.randn(10, 2, generator=g)))

    def loss_fn(model, batch):
        obs, noise = batch
        action, logp = model["actor"](obs, noise)
        return (0.2 * logp - torch.tanh(model["critic"](obs, action))).mean()

    return dict(model=agent, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=("input_out_of_scale",), module="actor.head", phase="forward", op="aten.exp", first_bad_step=3, sample=7,
                           line="torch.exp(self.log_std(h))", why="the log deviation of row 7 is far above 88.7"))
