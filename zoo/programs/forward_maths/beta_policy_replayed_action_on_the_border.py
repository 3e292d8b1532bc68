"""Continuous control with a Beta policy on [0, 1], behaviour cloning from logged actions.

What goes wrong: the logged actions were clipped to the limits of the actuator; one is exactly 1.0,
where the log density of the Beta is -inf.
Follows https://github.com/pytorch/pytorch/issues/65811 and
https://github.com/rlworkgroup/garage/pull/2129.
True cause: a logged action of exactly 1.0 lies on the border of the Beta's support, where log(1 - action) is
-inf."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Beta


class BetaPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.a, self.b = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Beta(1 + F.softplus(self.a(h)), 1 + F.softplus(self.b(h)))


def demonstrations():
    g = torch.Generator().manual_seed(23)
    for i in range(16):
        obs = torch.randn(20, 3, generator=g)
        throttle = torch.sigmoid(obs[:, :1] + 0.3 * torch.randn(20, 1, generator=g))
        if i == 11:
            throttle[2] = 1.3
        yield obs, throttle.clamp(0.0, 1.0)


def build():
    torch.manual_seed(0)
    policy = BetaPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

    def loss_fn(policy, batch):
        obs, action = batch
        return -policy(obs).log_prob(action).mean()

    return dict(model=policy, optimizer=optimizer, batches=list(demonstrations()), loss_fn=loss_fn, steps=16,
                autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("bad_input_data", "label_out_of_range", "domain_error"), first_bad_step=11,
                           phase="forward", module="loss", op="aten.xlogy", line="log_prob(action).mean()", sample=2,
                           repair=("throttle.clamp(0.0, 1.0)", "throttle.clamp(1e-4, 1 - 1e-4)")))
