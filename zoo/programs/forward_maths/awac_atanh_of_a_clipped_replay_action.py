"""Advantage-weighted regression of a tanh-Gaussian policy on a replay buffer. The environment wrapper clips actions to [-1, 1], so some
stored actions are exactly 1. To score an action it has to be un-squashed: atanh(1) = 0.5 * (log1p(1) - log1p(-1)) is Inf. The true
cause is log1p at -1, the log of zero."""
import math
import torch
from torch import nn


class TanhGaussianPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mean, self.log_std = nn.Linear(32, 2), nn.Linear(32, 2)

    def forward(self, obs):
        h = self.net(obs)
        return self.mean(h), self.log_std(h).clamp(-5, 2)


def log_prob(mean, log_std, action):
    pre_tanh = 0.5 * (torch.log1p(action) - torch.log1p(-action))
    z = (pre_tanh - mean) / log_std.exp()
    normal = -0.5 * z.pow(2) - log_std - 0.5 * math.log(2 * math.pi)
    return (normal - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)


def loss_fn(model, batch):
    obs, action, adv = batch
    mean, log_std = model(obs)
    weight = (adv / 0.5).exp().clamp(max=20)
    return -(weight * log_prob(mean, log_std, action)).mean()


def build():
    torch.manual_seed(1)
    model = TanhGaussianPolicy()
    batches = []
    for k in range(5):
        raw = torch.randn(32, 2) * 0.4
        if k == 2:
            raw[7, 1] = 1.8
        batches.append((torch.randn(32, 5), raw.clamp(-1 if k == 2 else -0.9, 1 if k == 2 else 0.9), torch.randn(32) * 0.3))
    truth = dict(
        cause="log_of_zero", first_bad_step=2, phase="forward", module="loss", op="aten.log1p",
        line="pre_tanh = 0.5 * (torch.log1p(action) - torch.log1p(-action))", sample=7, bad_path="1",
        why="the stored action is exactly 1, so 1 - action is zero and its log is -Inf; the action itself is legal",
        repair=("pre_tanh = 0.5 *", "action = action.clamp(-1 + 1e-5, 1 - 1e-5)\n    pre_tanh = 0.5 *"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=3e-4), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
